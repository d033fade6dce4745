"""Attacks with request bodies and answers of the highest reading cost, and with grammars of clients
disconnecting at once.

Each request is abandoned after seconds. The world checks the cost: /health in processor time of the
event loop, memory during and after, and the node's return to rest.
"""

import json
import random
import time
from collections.abc import Callable, Mapping
from functools import partial

from scripts.attack.attack import Attempt
from scripts.attack.world import ANN, BOB
from scripts.neighbours.noise import Body, answers, send, texts

_LEAVE_SECONDS = 3.0
_SERVER_FAULT = "500"


def heavy_texts(attempt: Attempt) -> None:
    """Send request bodies with nested, quoted and repeated texts, and with metadata the answer
    echoes."""
    _send_all(attempt, texts(), _LEAVE_SECONDS)


def heavy_answers(attempt: Attempt) -> None:
    """Request answers with a high reading cost: with long stop strings, with tools, and with
    both."""
    _send_all(attempt, answers(), _LEAVE_SECONDS)


def left_grammars(attempt: Attempt) -> None:
    """Send grammars, new each time and slow to try. Most clients leave within 0.3 s."""
    rng = attempt.rng
    for _ in attempt.rounds():
        made = {f"grammar {number}": partial(_grammar, rng.random()) for number in range(16)}
        _send_once(attempt, made, rng.choice((0.05, 0.3, _LEAVE_SECONDS)))
    _another_key_is_served(attempt)


def _grammar(number: float) -> Body:
    """Return a JSON schema with a thousand names. It compiles within a grammar trial's limits."""
    properties = {f"name {number} {place}": {"type": "string"} for place in range(1000)}
    schema = {"type": "object", "properties": properties, "additionalProperties": False}
    asked = {"prompt": "hello", "max_tokens": 2, "json_schema": json.dumps(schema)}
    return "/v1/completions", json.dumps(asked).encode()


def _another_key_is_served(attempt: Attempt) -> None:
    """Send a grammar with another API key and check its answer. It waits for one grammar trial at
    most. The child processes of the abandoned trials have then ended."""
    body = {"prompt": "hello", "max_tokens": 2, "guided_regex": f"[a-z]{{2}}|{random.random()}"}
    begun = time.monotonic()
    posted = ("/v1/completions", json.dumps(body).encode())
    status = send(attempt.world.decode.http_address, BOB, posted, 60.0)
    attempt.tally.note(f"another key {status}")
    if not status.startswith("200"):
        seconds = time.monotonic() - begun
        attempt.tally.finding(f"another key's grammar ended with {status} after {seconds:.1f} s")


def _send_all(
    attempt: Attempt, made: Mapping[str, Callable[[], Body]], leave_seconds: float
) -> None:
    for _ in attempt.rounds():
        _send_once(attempt, made, leave_seconds)


def _send_once(
    attempt: Attempt, made: Mapping[str, Callable[[], Body]], leave_seconds: float
) -> None:
    address = attempt.world.decode.http_address

    def one(name: str, key: str) -> None:
        status = send(address, key, made[name](), leave_seconds)
        attempt.tally.note(status)
        if status.startswith(_SERVER_FAULT):
            attempt.tally.finding(f"{status} of {name}")

    calls = [partial(one, name, key) for name in made for key in (ANN, BOB)]
    attempt.rng.shuffle(calls)
    attempt.at_once(8, calls)
