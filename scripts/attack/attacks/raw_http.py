"""Attacks with bytes close to HTTP: request smuggling, huge and broken heads, chunks with wrong
lengths. Also connections sending little or nothing."""

import time
from functools import partial

from scripts.attack.attack import Attempt
from scripts.attack.http_call import raw
from scripts.attack.world import ANN

_HOST = b"Host: 127.0.0.1\r\n"
_KEY = f"Authorization: Bearer {ANN}\r\n".encode()
_POST = b"POST /v1/completions HTTP/1.1\r\n" + _HOST + _KEY + b"Content-Type: application/json\r\n"
_SENT = (
    b"",
    b"\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    b"GET / HTTP/9.9\r\n\r\n",
    b"GET /health HTTP/1.1\r\n\r\n",
    b"GET http://evil.example/v1/models HTTP/1.1\r\n" + _HOST + _KEY + b"\r\n",
    b"CONNECT 127.0.0.1:22 HTTP/1.1\r\n" + _HOST + b"\r\n",
    b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\n" + _HOST + b"\r\n",
    b"GET /health HTTP/1.1\r\n" + b"A: b\r\n" * 20_000 + b"\r\n",
    b"GET /health HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
    b"GET /health HTTP/1.1\r\n" + _HOST + b"Bad Header: \x00\xff\r\n\r\n",
    b"GET /health HTTP/1.1\r\n" + _HOST + b"X: a\nY: b\r\n\r\n",
    b"GET /v1/models HTTP/1.1\r\n" + _HOST + b"Authorization: Bearer \xed\xa0\x80\r\n\r\n",
    b"GET /v1/models HTTP/1.1\r\n" + _HOST + _KEY + b"Authorization: Bearer forged\r\n\r\n",
    _POST
    + b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
    + b"GET /metrics HTTP/1.1\r\n\r\n",
    _POST + b"Content-Length: -1\r\n\r\n{}",
    _POST + b"Content-Length: 99999999999999999999\r\n\r\n{}",
    _POST + b"Content-Length: 2\r\nContent-Length: 5\r\n\r\n{}abc",
    _POST + b"Transfer-Encoding: chunked\r\n\r\nFFFFFFFFFFFFFFFFF\r\n{}\r\n0\r\n\r\n",
    _POST + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n{}\r\n0\r\n\r\n",
    _POST + b"Transfer-Encoding: gzip, chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
    _POST + b"Expect: 100-continue\r\nContent-Length: 2\r\n\r\n{}",
    _POST + b"Connection: Upgrade\r\nUpgrade: websocket\r\nContent-Length: 2\r\n\r\n{}",
)
_SECONDS = 2.0


def raw_http(attempt: Attempt) -> None:
    def send(address: str, sent: bytes) -> None:
        try:
            received = raw(address, sent, _SECONDS)
        except OSError:
            received = b""
        words = received[:20].split()
        status = words[1].decode(errors="replace") if len(words) > 1 else "no answer"
        attempt.tally.note(status)
        if status == "500":
            attempt.tally.finding(f"500 of {sent[:200]!r}")
        if b"tasuki_" in received:
            attempt.tally.finding(f"metrics sent without a key to {sent[:200]!r}")

    for _ in attempt.rounds():
        rounds = [
            (node.http_address, sent[: attempt.rng.choice((len(sent), len(sent), len(sent) // 2))])
            for sent in _SENT
            for node in attempt.world.nodes
        ]
        attempt.at_once(12, [partial(send, *sent) for sent in rounds])


def slow_clients(attempt: Attempt) -> None:
    """Hold idle connections open, and send request heads and bodies without an end."""
    head = b"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\n"
    starts = (
        *(b"", head[:10], head, head + b"Content-Length: 1000\r\n\r\n{"),
        head + b"Transfer-Encoding: chunked\r\n\r\n5\r\n{",
    )
    left = max(1.0, attempt.until - time.monotonic())

    def hold(address: str, sent: bytes) -> None:
        try:
            received = raw(address, sent, left)
        except OSError:
            attempt.tally.note("refused")
            return
        attempt.tally.note(received[9:12].decode(errors="replace") or "held or closed")

    holds = [
        partial(hold, attempt.rng.choice(attempt.world.nodes).http_address, sent)
        for sent in starts * 60
    ]
    attempt.at_once(len(holds), holds)
