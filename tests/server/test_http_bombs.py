"""Tests of a stranger's requests: each costs a header; nothing is inflated, drained or awaited."""

import gzip
import json
import resource
import time
from collections.abc import Iterator
from contextlib import closing, suppress

import pytest

from tasuki.server.config import ServerConfig
from tests.harness.api_keys import headers
from tests.harness.http_fixtures import HttpFront, running_http

KEY = "a-key-of-this-test"
LIMIT = 4 * 2**20


@pytest.fixture(scope="module")
def bomb() -> bytes:
    """Return 1 MB of gzip data for 1 GB of zeros."""
    member = gzip.compress(bytes(2**26), 9)
    return member * 16


@pytest.fixture(scope="module")
def http() -> Iterator[HttpFront]:
    config = ServerConfig(api_key=KEY, max_message_mib=LIMIT // 2**20)
    with running_http(config=config) as running:
        yield running


def loop_seconds(front: HttpFront) -> float:
    """Return the processor time of the event loop's thread so far, in seconds."""

    async def read() -> float:
        return time.thread_time()

    return front.front.run(read())


def head_of(*more: str, path: str = "/v1/completions", key: str = KEY) -> str:
    """Return the head of a JSON POST. more: further header lines."""
    lines = (f"POST {path} HTTP/1.1", "Host: localhost", "Content-Type: application/json")
    return "\n".join([*lines, f"Authorization: Bearer {key}", *more])


def raw(head: str) -> bytes:
    return head.replace("\n", "\r\n").encode() + b"\r\n\r\n"


def say(front: HttpFront, head: str, body: bytes = b"") -> tuple[bytes, bool]:
    """Send raw bytes; return the answer, and true if the connection was closed after it."""
    with front.dial() as connection:
        connection.sendall(raw(head))
        answer = b""
        with suppress(OSError):  # refused and closed before all was sent
            connection.sendall(body)
        try:
            while b"\r\n\r\n" not in answer and (piece := connection.recv(1 << 16)):
                answer += piece
            connection.settimeout(20)
            while connection.recv(1 << 16):
                pass
            return answer, True
        except ConnectionError:
            return answer, True
        except TimeoutError:
            return answer, False


@pytest.mark.parametrize("key", [KEY, "a-guess"])
@pytest.mark.parametrize("path", ["/v1/completions", "/tokenize", "/health", "/nowhere"])
def test_a_bomb_is_never_inflated(http: HttpFront, bomb: bytes, path: str, key: str) -> None:
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    before = loop_seconds(http)
    head = head_of("Content-Encoding: gzip", f"Content-Length: {len(bomb)}", path=path, key=key)
    answer, closed = say(http, head, bomb)
    assert closed
    assert not answer or answer.split()[1] in (b"415", b"401", b"404", b"405")
    # Inflating a gigabyte takes seconds.
    assert loop_seconds(http) - before < 0.5
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - memory
    assert grown < 64 * 1024, "KiB"


@pytest.mark.parametrize(
    "encoding", ["gzip", "deflate", "br", "zstd", "gzip, identity", "nonsense"]
)
@pytest.mark.parametrize("more", ["Content-Length: 1000", "Transfer-Encoding: chunked"])
def test_an_encoding_is_refused_by_its_header(
    http: HttpFront, encoding: str, more: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Answer before any byte of the body is sent."""
    monkeypatch.setattr("tasuki.server.http.bounded_reading._SKIM_SECONDS", 0.1)
    answer, closed = say(http, head_of(f"Content-Encoding: {encoding}", more))
    assert answer.split()[1] == b"415" and closed


def test_leave_to_send_a_body_is_not_given_before_it_is_wanted(http: HttpFront) -> None:
    for key in ("a-guess", KEY):
        more = ("Content-Encoding: gzip", "Content-Length: 1000", "Expect: 100-continue")
        answer, closed = say(http, head_of(*more, key=key))
        assert answer.split()[1] == b"415" and closed
        assert b"100 Continue" not in answer


def test_leave_is_given_to_who_may_send_one(http: HttpFront) -> None:
    body = b'{"prompt": [5, 6, 7]}'
    with http.dial() as connection:
        connection.sendall(raw(head_of("Expect: 100-continue", f"Content-Length: {len(body)}")))
        assert connection.recv(1 << 16).startswith(b"HTTP/1.1 100 Continue")
        connection.sendall(body)
        assert connection.recv(1 << 16).startswith(b"HTTP/1.1 200 OK")


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/messages", "/tokenize"])
def test_what_nobody_meets_is_refused_as_other_requests_are(http: HttpFront, path: str) -> None:
    more = ("Expect: banana", "Content-Length: 1000", "x-request-id: expecting")
    answer, closed = say(http, head_of(*more, path=path))
    head, body = answer.split(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 417") and closed
    assert b"application/json" in head and b"x-request-id: expecting" in head.lower()
    assert "banana" in json.loads(body)["error"]["message"] and b"100 Continue" not in answer


def test_an_identity_is_no_encoding(http: HttpFront) -> None:
    assert http.complete(headers(KEY) | {"Content-Encoding": "identity"}).status == 200


def test_a_stranger_s_long_body_is_not_drained(http: HttpFront) -> None:
    """Report the reason and close the connection long before the whole body was taken."""
    sent = 0
    with http.dial() as connection:
        connection.sendall(
            b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"
            b"Content-Length: 1000000000\r\n\r\n"
        )
        with suppress(ConnectionError):
            for _ in range(10_000):
                sent += connection.send(bytes(1 << 16))
    # The bytes skimmed, and the contents of both kernels' buffers.
    assert sent < 64 * 2**20


def test_a_refusal_reaches_a_client_that_speaks_before_it_listens(http: HttpFront) -> None:
    connection = http.connect()
    connection.request("POST", "/v1/completions", b"x" * 200_000)
    assert connection.getresponse().status == 401
    connection.close()


def test_a_body_over_the_size_is_refused_by_its_header(
    http: HttpFront, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The client sends nothing of the body.
    monkeypatch.setattr("tasuki.server.http.bounded_reading._CALLER_SKIM_SECONDS", 0.1)
    answer, closed = say(http, head_of(f"Content-Length: {LIMIT + 1}"))
    assert answer.split()[1] == b"413" and closed


def test_a_chunked_body_over_the_size_is_refused_while_it_comes(http: HttpFront) -> None:
    with closing(http.connect()) as connection:
        connection.putrequest("POST", "/v1/completions")
        connection.putheader("Content-Type", "application/json")
        connection.putheader("Authorization", f"Bearer {KEY}")
        connection.putheader("Transfer-Encoding", "chunked")
        connection.endheaders()
        with suppress(ConnectionError):
            for _ in range(LIMIT // 2**16 + 8):
                connection.send(b"10000\r\n" + bytes(2**16) + b"\r\n")
        assert connection.getresponse().status == 413
