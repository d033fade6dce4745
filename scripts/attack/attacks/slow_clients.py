"""Connections that send little or nothing: idle ones, heads and bodies that never end."""

import time
from functools import partial

from scripts.attack.attack import Attempt
from scripts.attack.crowd import at_once
from scripts.attack.http_call import raw


def slow_clients(attempt: Attempt) -> None:
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
    at_once(len(holds), holds, attempt.until)
