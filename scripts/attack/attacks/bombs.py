"""Bodies that cost more to read than to send: compressed, deep, wide, long, of many messages."""

import gzip
import json
import zlib
from functools import partial

from scripts.attack.attack import Attempt
from scripts.attack.crowd import at_once
from scripts.attack.http_call import HttpCall, ask
from scripts.attack.world import ANN

_COMPLETE, _CHAT = "/v1/completions", "/v1/chat/completions"
_REFUSED = range(400, 500)


def gzip_bombs(attempt: Attempt) -> None:
    """With and without a key; whatever the body, it is refused by its header."""
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
        at_once(4, sent, attempt.until)


def json_bombs(attempt: Attempt) -> None:
    """Deep and wide JSON, numbers of a million digits, in fields that nobody reads too."""
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
    """Many messages, marks in disguise, megabytes of text: what is quadratic shows."""
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


def _send_all(attempt: Attempt, bodies: list[tuple[str, bytes]]) -> None:
    headers = {"Content-Type": "application/json"}
    address = attempt.world.decode.http_address
    for _ in attempt.rounds():
        calls = [HttpCall("POST", path, body, ANN, headers) for path, body in bodies]
        attempt.rng.shuffle(calls)
        at_once(3, [partial(ask, address, call, attempt.tally) for call in calls], attempt.until)
