"""Attacks on the Responses API: WebSocket frames, background responses, stored conversations.

The answers are of no interest. Checked are the node's memory, its event loop, and the isolation of
API keys: another key finds nothing.
"""

import http.client
import json
import socket
import threading
import time
from functools import partial
from typing import Any

from scripts.attack.attack import Attempt
from scripts.attack.http_call import CALL_SECONDS, HttpCall, ask, judge
from scripts.attack.world import ANN, BOB
from tests.harness.response_sockets import begun_frame, frame, upgraded

_STORM = 24
_JSON = {"Content-Type": "application/json"}
_TEXT, _CONTINUED, _CLOSE, _PING, _PONG = 1, 0, 8, 9, 10


def socket_frames(attempt: Attempt) -> None:
    """Send thousands of WebSocket pings, endless texts and wrong lengths, and leave replies
    unread."""
    rng = attempt.rng
    create = json.dumps({"type": "response.create", "input": "hello"}).encode()
    zeros = b"\0\0\0\0"
    asked = bytes([0x81, 0x80 | len(create)]) + zeros + create
    floods = (
        *(frame(_PING) * 50_000, frame(_PONG) * 50_000, frame(_TEXT) * 10_000, asked * 200),
        bytes([0x01, 0x81]) + zeros + b"{" + bytes([0x00, 0x80]) * 50_000,
        *(begun_frame(2**62), begun_frame(2**23) + b"x" * 2**22, begun_frame(2**23) + b"x" * 2**23),
        *(frame(_CONTINUED, b"x"), frame(_TEXT, b"\xff" * 2**16), b"\xc1\x85" + zeros + b"abcde"),
        *(frame(_CLOSE, rng.randbytes(2)), rng.randbytes(2**12), frame(_PING, b"x" * 125) * 2000),
    )

    def flood(address: str, sent: bytes, reads: bool, patience: float) -> None:
        try:
            with socket.create_connection(_place(address), timeout=patience) as raw:
                upgraded(raw, ANN)
                reader = threading.Thread(target=_read_on, args=(raw,))
                if reads:
                    reader.start()
                try:
                    raw.sendall(sent)
                    time.sleep(patience)
                    raw.shutdown(socket.SHUT_RDWR)
                finally:
                    if reads:
                        raw.settimeout(0.0)
                        reader.join()
            attempt.tally.note("sent")
        except TimeoutError:
            attempt.tally.note("not taken")
        except (OSError, AssertionError):
            attempt.tally.note("refused or closed")

    for _ in attempt.rounds():
        address = attempt.world.decode.http_address
        calls = [
            partial(flood, address, sent, rng.random() < 0.5, rng.uniform(0.1, 1.0))
            for sent in rng.sample(floods, len(floods))
        ]
        attempt.at_once(8, calls)


def background_storm(attempt: Attempt) -> None:
    """Start background responses, then follow, cancel and delete them at random moments."""
    rng, address, tally = attempt.rng, attempt.world.decode.http_address, attempt.tally

    def begin_and_end(number: int, pauses: list[float], ends: list[tuple[str, str]]) -> None:
        body = {"input": f"hello {number}", "max_output_tokens": 40, "background": True}
        made = _made(attempt, "/v1/responses", body)
        if made is None:
            return
        for pause, (method, rest) in zip(pauses, ends, strict=True):
            time.sleep(pause)
            path = f"/v1/responses/{made['id']}"
            if ask(address, HttpCall(method, path + rest, key=BOB), tally) != 404:
                tally.finding(f"another key's {method} of a response in the background")
            ask(address, HttpCall(method, path + rest, key=ANN), tally)

    ways = (("POST", "/cancel"), ("DELETE", ""), ("GET", ""), ("GET", "?stream=true"))
    number = 0
    for _ in attempt.rounds():
        calls = []
        for _ in range(_STORM):
            number += 1
            pauses = [rng.uniform(0.0, 0.2) for _ in range(3)]
            calls.append(partial(begin_and_end, number, pauses, rng.sample(ways, 3)))
        attempt.at_once(8, calls)


def conversation_flood(attempt: Attempt) -> None:
    """Create thousands of conversations, some with many items. Another API key must find none of
    them."""
    address, tally = attempt.world.decode.http_address, attempt.tally
    items = [{"role": "user", "content": "x" * 100}] * 20
    for _ in attempt.rounds():
        made = _made(attempt, "/v1/conversations", {"items": items})
        if made is None:
            continue
        path = f"/v1/conversations/{made['id']}"
        for method, rest in (("GET", ""), ("GET", "/items"), ("DELETE", "")):
            if ask(address, HttpCall(method, path + rest, key=BOB), tally) != 404:
                tally.finding(f"another key's {method} of a conversation{rest}")
        more = json.dumps({"items": items}).encode()
        call = HttpCall("POST", f"{path}/items", more, ANN, _JSON)
        attempt.at_once(4, [partial(ask, address, call, tally)] * 250)
        new = HttpCall("POST", "/v1/conversations", b"{}", ANN, _JSON)
        attempt.at_once(4, [partial(ask, address, new, tally)] * 250)


def _made(attempt: Attempt, path: str, body: dict[str, Any]) -> dict[str, Any] | None:
    """Post a body with the key of the tenant ann, and return the reply. Returns None if there is no
    reply, or the call is refused."""
    address = attempt.world.decode.http_address
    connection = http.client.HTTPConnection(address, timeout=CALL_SECONDS)
    try:
        headers = {**_JSON, "Authorization": f"Bearer {ANN}"}
        connection.request("POST", path, json.dumps(body).encode(), headers)
        reply = connection.getresponse()
        content = reply.read()
    except TimeoutError:
        attempt.tally.finding(f"no end within {CALL_SECONDS:.0f} s: POST {path} {body}")
        return None
    except (OSError, http.client.HTTPException):
        attempt.tally.note("closed")
        return None
    finally:
        connection.close()
    judge(reply.status, content, f"POST {path} {body}", attempt.tally)
    made: dict[str, Any] | None = json.loads(content) if reply.status == 200 else None
    return made


def _place(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host, int(port)


def _read_on(raw: socket.socket) -> None:
    try:
        while raw.recv(2**16):
            pass
    except OSError:
        pass
