"""Attacks with request bodies more expensive to read than to send: compressed, deep, wide, long,
with many messages. Also grammars slow to try, large to keep, or impossible to follow."""

import gzip
import json
import zlib
from functools import partial
from typing import Any

from scripts.attack.attack import Attempt
from scripts.attack.http_call import HttpCall, ask
from scripts.attack.world import ANN

_COMPLETE, _CHAT = "/v1/completions", "/v1/chat/completions"
_REFUSED = range(400, 500)
_PATTERNS = (
    *("(" * 500 + "a" + ")" * 500, "((a{1,1000}){1,1000}){1,1000}", "(a|b)*a(a|b){22}"),
    *("(.*a){60}", "(?=a)b", r"[\p{L}\p{N}]{1,5000}x", r"[^\s\S]"),
    "|".join(f"w{number}" for number in range(20_000)),
)


def gzip_bombs(attempt: Attempt) -> None:
    """Send compressed bodies, with and without an API key. The node must refuse each body by its
    header."""
    zeros = gzip.compress(bytes(200 * 2**20), 1)
    bodies = [
        *(("gzip", zeros), ("deflate", zlib.compress(bytes(50 * 2**20), 1)), ("gzip", b"{}")),
        *(("br", b"\x1b"), ("zstd", b"\x28"), ("gzip, gzip", zeros[:4000]), ("identity;", b"{}")),
    ]

    def send(address: str, key: str, encoding: str, body: bytes) -> None:
        headers = {"Content-Type": "application/json", "Content-Encoding": encoding}
        call = HttpCall("POST", _COMPLETE, body, key, headers)
        status = ask(address, call, attempt.tally)
        if status is not None and status not in _REFUSED:
            attempt.tally.finding(f"{status} of a body in {encoding}")

    for _ in attempt.rounds():
        sent = [
            partial(send, node.http_address, key, *body)
            for body in bodies
            for key in (ANN, "")
            for node in attempt.world.nodes
        ]
        attempt.at_once(4, sent)


def json_bombs(attempt: Attempt) -> None:
    """Send deep and wide JSON, and numbers of a million digits, also in fields the node does not
    read."""
    deep = b'{"prompt": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"
    unread = b'{"prompt": "x", "max_tokens": 1, "y": %s}'
    bodies = [
        *(deep, unread % (b'{"a":' * 5000 + b"1" + b"}" * 5000)),
        *(unread % (b"[" + b"[]," * 2_000_000 + b"[]]"), unread % (b"9" * 1_000_000)),
        *(unread % (b"[" + b"1," * 4_000_000 + b"1]"), b"[" * 30_000_000),
        b'{"prompt": [' + b"1," * 3_000_000 + b"1]}",
        b"{" + b",".join(b'"k%d":1' % i for i in range(300_000)) + b"}",
    ]
    _send_all(attempt, [(_COMPLETE, body) for body in bodies])


def long_conversations(attempt: Attempt) -> None:
    """Send many messages, texts disguised as internal marks, and megabytes of text, to reveal
    quadratic work."""
    disguised = "".join(f"\ue000{number}:" for number in range(64_000))
    bodies: list[tuple[str, object]] = [
        (_CHAT, {"messages": [{"role": "user", "content": "hi"}] * count, "max_tokens": 1})
        for count in (1000, 4000, 50_000)
    ]
    bodies += [
        (path, {"prompt": text, "max_tokens": 1})
        for path in (_COMPLETE, "/tokenize")
        for text in ("word " * 200_000, "a" * 8_000_000, disguised, "\u0301" * 500_000)
    ]
    bodies.append((_CHAT, {"messages": [{"role": "user", "content": disguised}], "max_tokens": 1}))
    _send_all(attempt, [(path, json.dumps(body).encode()) for path, body in bodies])


def grammar_bombs(attempt: Attempt) -> None:
    hello = {"prompt": "hello", "max_tokens": 4}
    bodies = [{**hello, "json_schema": json.dumps(schema)} for schema in _schemas()]
    bodies += [{**hello, "regex": pattern} for pattern in _PATTERNS]
    _send_all(attempt, [(_COMPLETE, json.dumps(body).encode()) for body in bodies])


def _schemas() -> list[Any]:
    deep: dict[str, Any] = {"type": "integer"}
    for _ in range(50):
        deep = {"type": "array", "items": deep}
    slow = [
        {"type": "string", "pattern": f"^a{number}[bc]*(x|y){{1,30}}$"} for number in range(2000)
    ]
    circle = {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}
    return [
        *(deep, [1], False, {"not": {}}, {"$ref": "#"}, {"$defs": circle, "$ref": "#/$defs/a"}),
        {"type": "object", "properties": {str(number): one for number, one in enumerate(slow)}},
        {"allOf": [{"anyOf": slow[:8]}] * 8},
        {"enum": [f"value {number}" for number in range(15_000)]},
        {"type": "string", "minLength": 10**9},
        {"type": "integer", "minimum": -(10**400)},
    ]


def _send_all(attempt: Attempt, bodies: list[tuple[str, bytes]]) -> None:
    headers = {"Content-Type": "application/json"}
    address = attempt.world.decode.http_address
    for _ in attempt.rounds():
        calls = [HttpCall("POST", path, body, ANN, headers) for path, body in bodies]
        attempt.rng.shuffle(calls)
        attempt.at_once(3, [partial(ask, address, call, attempt.tally) for call in calls])
