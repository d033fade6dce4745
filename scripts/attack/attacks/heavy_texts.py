"""Bodies and answers with the highest cost of reading, and grammars of callers that leave at once.

Each request is abandoned after seconds. The world checks the cost: /health in processor time of the
event loop, memory during and after, and the node's return to rest.
"""

import http.client
import json
import random
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from functools import partial

from scripts.attack.attack import Attempt
from scripts.attack.world import ANN, BOB

_LEAVE_SECONDS = 3.0
_SERVER_FAULT = "500"
_CHAT, _COMPLETE = "/v1/chat/completions", "/v1/completions"
_RESPOND = "/v1/responses"
_MIB = 2**20

Body = tuple[str, bytes]
"""A path and the content to post there."""


def _json(path: str, **fields: object) -> Body:
    return path, json.dumps(fields, ensure_ascii=False).encode()


def _call(arguments: str) -> dict[str, object]:
    function = {"name": "f", "arguments": arguments}
    return {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "call_1", "type": "function", "function": function}],
    }


def _cut_arguments(path: str, arguments: str) -> Body:
    user = {"role": "user", "content": "hi"}
    if path == _RESPOND:
        item = {"type": "function_call", "call_id": "c", "name": "f", "arguments": arguments}
        return _json(path, input=[user, item, {**user, "type": "message"}], max_output_tokens=4)
    return _json(path, messages=[user, _call(arguments), user], max_tokens=4)


def _tools() -> list[dict[str, object]]:
    return [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]


def _streamed(**fields: object) -> Body:
    """Return a streamed chat with a long answer."""
    user = {"role": "user", "content": "write"}
    return _json(_CHAT, messages=[user], stream=True, max_tokens=3000, **fields)


def _texts() -> dict[str, Callable[[], Body]]:
    """Return bodies with the highest cost of reading, by name. Each is built on its call."""
    nested = '{"a":' + "[" * 1_000_000
    quotes = b'{"prompt": "' + b"," * 1_100_000 + b'", "x": [' + b'"" ' * 9_000_000
    return {
        "cut-off arguments in a chat": lambda: _cut_arguments(_CHAT, nested),
        "cut-off arguments in a response": lambda: _cut_arguments(_RESPOND, nested),
        "quotes behind commas": lambda: (_COMPLETE, quotes),
        "lists": lambda: (_COMPLETE, b'{"prompt": [5], "x": [' + b"[]," * (9 * _MIB) + b"[]]}"),
        "text of 8 MB": lambda: _json(_COMPLETE, prompt="a" * 8_000_000, max_tokens=1),
        "4,000 messages": lambda: _json(
            _CHAT, messages=[{"role": "user", "content": "hi"}] * 4000, max_tokens=4
        ),
        "metadata of 20 MiB": lambda: _json(
            _RESPOND, input="hi", stream=True, metadata={"k": "x" * (20 * _MIB)}
        ),
    }


def _answers() -> dict[str, Callable[[], Body]]:
    """Return bodies with streamed answers of the highest cost of reading, by name."""
    stops = [letter * 1024 for letter in "bcdefghijklmnop"] + ["[]," * 341 + "q"]
    return {
        "long stop strings": lambda: _streamed(stop=stops),
        "arguments before the name": lambda: _streamed(tools=_tools()),
        "both": lambda: _streamed(tools=_tools(), stop=stops),
    }


def heavy_texts(attempt: Attempt) -> None:
    """Send nested, quoted and repeated texts in bodies, and metadata to be echoed."""
    _send_all(attempt, _texts(), _LEAVE_SECONDS)


def heavy_answers(attempt: Attempt) -> None:
    """Request answers with long stop strings, with tools, and with both."""
    _send_all(attempt, _answers(), _LEAVE_SECONDS)


def left_grammars(attempt: Attempt) -> None:
    """Send grammars, new each time and slow to try. Most callers leave at once."""
    rng = attempt.rng
    for _ in attempt.rounds():
        made = {f"grammar {number}": partial(_grammar, rng.random()) for number in range(16)}
        _send_once(attempt, made, rng.choice((0.05, 0.3, _LEAVE_SECONDS)))
    _another_key_is_served(attempt)


def _grammar(number: float) -> Body:
    """Return a schema of a thousand names. It compiles within a trial's bounds."""
    properties = {f"name {number} {place}": {"type": "string"} for place in range(1000)}
    schema = {"type": "object", "properties": properties, "additionalProperties": False}
    asked = {"prompt": "hello", "max_tokens": 2, "json_schema": json.dumps(schema)}
    return "/v1/completions", json.dumps(asked).encode()


def _another_key_is_served(attempt: Attempt) -> None:
    """Check that another key is served: its grammar waits for one trial at most, and every child of
    the others has ended."""
    body = {"prompt": "hello", "max_tokens": 2, "guided_regex": f"[a-z]{{2}}|{random.random()}"}
    begun = time.monotonic()
    posted = ("/v1/completions", json.dumps(body).encode())
    status = _send(attempt.world.decode.http_address, BOB, posted, 60.0)
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
        status = _send(address, key, made[name](), leave_seconds)
        attempt.tally.note(status)
        if status.startswith(_SERVER_FAULT):
            attempt.tally.finding(f"{status} of {name}")

    calls = [partial(one, name, key) for name in made for key in (ANN, BOB)]
    attempt.rng.shuffle(calls)
    attempt.at_once(8, calls)


def _send(address: str, key: str, body: Body, seconds: float) -> str:
    """Post, read, and leave after so many seconds. Returns the status, or `left` and when."""
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {key}"}
    path, content = body
    ends = time.monotonic() + seconds
    status = "left before its status"
    with closing(http.client.HTTPConnection(address, timeout=seconds)) as connection:
        try:
            connection.request("POST", path, content, headers)
            reply = connection.getresponse()
            status = str(reply.status)
            while reply.read1(1 << 16):
                if time.monotonic() > ends:
                    return f"{status}, left"
        except (OSError, http.client.HTTPException):
            pass
    return status
