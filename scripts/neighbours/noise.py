"""The worst requests a client may send with its API key. Each body has the highest cost for one of
the node's parsers.

Pure except `send`; it abandons its request after some seconds. No body here harms a library:
stand-ins replace harmful grammars (node.py).
"""

import http.client
import json
import os
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from multiprocessing.connection import Connection

_CHAT, _COMPLETE = "/v1/chat/completions", "/v1/completions"
_RESPOND, _MESSAGES = "/v1/responses", "/v1/messages"
_MIB = 2**20
ANSWER = '<tool_call>\n{"arguments": [' + "[]," * 1000
"""An answer's text: a tool call with very long arguments before its name."""

Body = tuple[str, bytes]
"""A request: the path, and the content to post there."""


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
    """Return a streamed chat request with the given further fields. A node of node.py answers it
    with ANSWER, repeated."""
    user = {"role": "user", "content": "write"}
    return _json(_CHAT, messages=[user], stream=True, max_tokens=3000, **fields)


def texts() -> dict[str, Callable[[], Body]]:
    """Return the requests with the highest cost of reading, by name, each as a function building
    it."""
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


def answers() -> dict[str, Callable[[], Body]]:
    """Return the requests with streamed answers of the highest cost of reading, by name, each as a
    function building it."""
    stops = [letter * 1024 for letter in "bcdefghijklmnop"] + ["[]," * 341 + "q"]
    return {
        "long stop strings": lambda: _streamed(stop=stops),
        "arguments before the name": lambda: _streamed(tools=_tools()),
        "both": lambda: _streamed(tools=_tools(), stop=stops),
    }


def worst() -> dict[str, Callable[[], Body]]:
    """Return all requests of texts() and answers(), by name."""
    return {**texts(), **answers()}


def plain() -> dict[str, Callable[[], Body]]:
    """Return an ordinary streamed request, by name."""
    return {"plain stream": _streamed}


STAND_INS = ("spin", "allocate", "sleep", "abort", "garbage", "flood")


def _grammar(rng: random.Random, words: Sequence[str]) -> Body:
    """Return a request with a grammar stand-in. Its source is new each time, so no earlier verdict
    is reused. words: words of the stand-ins to choose from."""
    word = rng.choice(words)
    field = rng.choice(("guided_regex", "guided_grammar"))
    source = {field: f"{word} {rng.random()}"}
    return _json(_COMPLETE, prompt="hi", max_tokens=4, **source)


@dataclass(frozen=True)
class Crowd:
    """Clients in a separate process at the lowest priority, so they take little CPU, like clients
    on another machine. keys: API keys. shapes: makes the request bodies. stand_ins: words of the
    harmful grammars sent in alternation; none: no grammars. at_once: concurrent requests of each
    key. leave_seconds: seconds before abandoning a request."""

    address: str
    keys: Sequence[str]
    shapes: Callable[[], Mapping[str, Callable[[], Body]]]
    stand_ins: Sequence[str]
    at_once: int
    leave_seconds: float
    seed: int

    def run(self, owner: Connection) -> None:
        """Run the clients' process. Reports its start to the owner and ends on the owner's message.
        Sends counts by request name and outcome."""
        os.nice(19)
        made = [(name, make()) for name, make in self.shapes().items()]
        over = threading.Event()
        sent: Counter[tuple[str, str]] = Counter()
        threads = [
            threading.Thread(target=self._ask, args=(key, number, made, over, sent))
            for key in self.keys
            for number in range(self.at_once)
        ]
        for thread in threads:
            thread.start()
        owner.send("begun")
        owner.recv()
        over.set()
        for thread in threads:
            thread.join()
        owner.send(sent)

    def _ask(
        self,
        key: str,
        number: int,
        made: Sequence[tuple[str, Body]],
        over: threading.Event,
        sent: "Counter[tuple[str, str]]",
    ) -> None:
        """Send random request bodies, in alternation with grammar stand-ins if there are any, until
        `over`. sent: counts by name and outcome."""
        rng = random.Random(f"{self.seed}/{key}/{number}")
        while not over.is_set():
            asked = [rng.choice(made)]
            if self.stand_ins:
                grammar = _grammar(rng, self.stand_ins)
                asked.append(("a stand-in for a harmful grammar", grammar))
            for name, body in asked:
                status = send(self.address, key, body, self.leave_seconds)
                sent[name, status] += 1


def send(address: str, key: str, body: Body, seconds: float) -> str:
    """Post a body and read the reply, at most for `seconds`. Returns the status, or text with
    `left` and the moment of leaving."""
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
