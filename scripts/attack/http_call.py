"""One HTTP call of an attack. Its status shows a fault of the server.

Every call has a deadline. A status of 500, or no end at all, is always a finding.
"""

import http.client
import socket
from dataclasses import dataclass, field

from scripts.attack.tally import Tally

CALL_SECONDS = 60.0


@dataclass(frozen=True)
class HttpCall:
    """One HTTP call. key: API key sent as a bearer token; empty: none. body: raw bytes."""

    method: str
    path: str
    body: bytes | None = None
    key: str = ""
    headers: dict[str, str] = field(default_factory=dict)

    def description(self) -> str:
        body = "" if self.body is None else f" {self.body[:300]!r} of {len(self.body)} bytes"
        return f"{self.method} {self.path} {self.headers}{body}"


def ask(address: str, call: HttpCall, tally: Tally) -> int | None:
    """Send the call, and record its status in the tally. Returns the status. Returns None if the
    server closed the connection without one, or gave no end."""
    connection = http.client.HTTPConnection(address, timeout=CALL_SECONDS)
    headers = {**call.headers}
    if call.key:
        headers["Authorization"] = f"Bearer {call.key}"
    try:
        connection.request(call.method, call.path, call.body, headers)
        reply = connection.getresponse()
        content = reply.read()
    except TimeoutError:
        tally.finding(f"no end within {CALL_SECONDS:.0f} s: {call.description()}")
        tally.note("hung")
        return None
    except (OSError, http.client.HTTPException):
        tally.note("closed")
        return None
    finally:
        connection.close()
    judge(reply.status, content, call.description(), tally)
    return reply.status


def judge(status: int, content: bytes, description: str, tally: Tally) -> None:
    tally.note(str(status))
    # A streamed answer reports later errors in its events.
    if status == 500 or b'"type": "internal"' in content or b'"code": "internal"' in content:
        tally.finding(f"{status} {content[-200:]!r} of {description}")


def raw(address: str, sent: bytes, seconds: float) -> bytes:
    """Send raw bytes, not necessarily HTTP, over TCP. Returns the reply within `seconds`, at most
    about 1 MiB, or empty bytes."""
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=seconds) as connection:
        received = b""
        try:
            connection.sendall(sent)
            while chunk := connection.recv(65536):
                received += chunk
                if len(received) > 2**20:
                    break
        except (TimeoutError, ConnectionError):
            pass
        return received
