"""The worst that a caller's key may send: each body costs the most that one reader allows.

Pure, but for `send`, which leaves after some seconds. No body here harms a library: what a harmful
grammar does is left to stand-ins (node.py).
"""

import http.client
import json
import random
import time
from collections.abc import Callable, Iterator
from contextlib import closing

_CHAT, _COMPLETE = "/v1/chat/completions", "/v1/completions"
_RESPOND, _MESSAGES = "/v1/responses", "/v1/messages"
_MIB = 2**20

Body = tuple[str, bytes]
"""A path and the content that is posted there."""


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


def _written(pattern: str, **fields: object) -> Body:
    """A streamed chat whose answer follows the pattern."""
    user = {"role": "user", "content": "write"}
    return _json(
        _CHAT, messages=[user], guided_regex=pattern, stream=True, max_tokens=3000, **fields
    )


def texts() -> dict[str, Callable[[], Body]]:
    """Return bodies whose reading costs the most, by name. Each is made when it is asked for."""
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
    """Return bodies whose streamed answers cost the most to read, by name."""
    stops = [letter * 1024 for letter in "bcdefghijklmnop"] + ["a" * 1023 + "q"]
    return {
        "long stop strings": lambda: _written("a{3000}", stop=stops),
        "arguments before the name": lambda: _written(
            r'<tool_call>\n\{"arguments": \[(\[\],){1000}', tools=_tools()
        ),
        "a call without a name's end": lambda: _written(
            r'<tool_call>\n\{"name": "a{2000}', tools=_tools()
        ),
        "white space in a call": lambda: _written(r"<tool_call>\n {2000}", tools=_tools()),
    }


_STAND_INS = ("spin", "allocate", "sleep", "abort", "garbage", "flood")


def _grammar(rng: random.Random) -> Body:
    """A source that is new each time, so that no verdict is remembered."""
    word = rng.choice(_STAND_INS)
    field = rng.choice(("guided_regex", "guided_grammar"))
    source = {field: f"{word} {rng.random()}"}
    return _json(_COMPLETE, prompt="hi", max_tokens=4, **source)


def bodies(rng: random.Random) -> Iterator[tuple[str, Body]]:
    """Yield names and bodies without an end: shapes and stand-ins in turns."""
    made = [(name, make()) for name, make in {**texts(), **answers()}.items()]
    while True:
        yield rng.choice(made)
        yield "a stand-in for a harmful grammar", _grammar(rng)


def send(address: str, key: str, body: Body, seconds: float) -> str:
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
