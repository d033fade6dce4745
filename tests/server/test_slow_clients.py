"""Tests of silent and slow connections: they end by themselves. Connections over a cap end at
once."""

import asyncio
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.client import HTTPConnection

import grpc
import pytest
from aiohttp import web

from tasuki.engine import messages as m
from tasuki.proto import inference_pb2 as pb
from tasuki.server.config import ServerConfig
from tasuki.server.http import bounded_reading as http_body
from tasuki.server.http import server as http_server
from tests.harness.api_keys import headers
from tests.harness.grpc_calls import GrpcCalls, ids
from tests.harness.grpc_fixtures import Front, ScriptedEngine, running_front
from tests.harness.http_fixtures import HttpFront, running_http
from tests.harness.waiting import HANG_SECONDS, until

KEY = "a-key-of-this-test"
HEAD = (
    b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    b"Authorization: Bearer " + KEY.encode() + b"\r\nContent-Length: 100\r\n\r\n"
)


@contextmanager
def front(**settings: object) -> Iterator[HttpFront]:
    with running_http(config=ServerConfig(api_key=KEY, **settings)) as running:
        yield running


def ended(connection: socket.socket) -> bytes:
    """Return all bytes up to the server's end of the connection."""
    told = b""
    try:
        while piece := connection.recv(1 << 16):
            told += piece
    except ConnectionError:
        pass
    return told


def open_connections(http: HttpFront, expected: int) -> int:
    """Wait for `expected` open connections and return their number."""

    async def count() -> int:
        return len(http.server.connections)

    found = [-1]

    def counted() -> bool:
        found[0] = http.front.run(count())
        return found[0] == expected

    until(counted, lambda: f"{expected} connections, but {found[0]}")
    return found[0]


def calling(http: HttpFront) -> HTTPConnection:
    """Return a connection with one answered call."""
    connection = http.connect()
    connection.request("GET", "/v1/models", headers=headers(KEY))
    reply = connection.getresponse()
    assert reply.status == 200 and reply.read()
    return connection


@pytest.mark.parametrize("said", [b"", b"GET /health HTTP/1.1\r\nHost: lo", b"\r\n"])
def test_a_header_has_a_deadline(said: bytes) -> None:
    with front() as http:
        http.server.connections.header_seconds = 0.2
        with http.dial() as connection:
            connection.sendall(said)
            assert ended(connection) == b""
        assert open_connections(http, 0) == 0
        http.server.connections.header_seconds = HANG_SECONDS
        assert http.ask("GET", "/health").status == 200


def test_a_whole_header_in_pieces_is_in_time() -> None:
    with front() as http:
        http.server.connections.header_seconds = 2.0
        with http.dial() as connection:
            for piece in (b"GET /health HTTP/1.1\r", b"\nHost: localhost\r\n", b"\r", b"\n"):
                connection.sendall(piece)
                time.sleep(0.05)
            assert connection.recv(1 << 16).startswith(b"HTTP/1.1 200")
            time.sleep(2.5)
            connection.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert connection.recv(1 << 16).startswith(b"HTTP/1.1 200"), "it was kept"


def test_a_body_has_a_deadline_that_its_drops_do_not_move(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_body, "_GRACE_SECONDS", 0.5)
    with front() as http, http.dial() as connection:
        connection.sendall(HEAD)
        connection.settimeout(0.1)
        told = b""
        for _ in range(99):
            try:
                connection.sendall(b" ")
                told += connection.recv(1 << 16)
            except TimeoutError:
                continue
            except ConnectionError:
                break
            if told:
                break
        connection.settimeout(30)
        assert told.startswith(b"HTTP/1.1 408") and b"slow_body" in told + ended(connection)


def test_an_idle_connection_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "_KEEP_ALIVE_SECONDS", 0.3)
    with front() as http, http.dial() as connection:
        connection.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert ended(connection).startswith(b"HTTP/1.1 200")


def test_strangers_of_one_address_are_capped_and_callers_are_not() -> None:
    with front(max_connections=20) as http:
        # Callers from the same address connect first. They do not use the places of unknown
        # clients.
        callers = [calling(http) for _ in range(8)]
        strangers = [http.dial() for _ in range(5)]
        assert open_connections(http, 13) == 13
        with http.dial() as one_too_many:
            told = ended(one_too_many)
            assert told.startswith(b"HTTP/1.1 503")
            assert json.loads(told.partition(b"\r\n\r\n")[2])["error"]["code"] == "busy"
        callers[0].request("GET", "/v1/models", headers=headers(KEY))
        assert callers[0].getresponse().status == 200
        for connection in strangers:
            connection.close()
        assert open_connections(http, 8) == 8
        assert http.ask("GET", "/health").status == 200
        for caller in callers:
            caller.close()
        assert open_connections(http, 0) == 0


def test_connections_are_capped_in_all() -> None:
    with front(max_connections=3) as http:
        callers = [calling(http) for _ in range(3)]
        with http.dial() as one_too_many:
            assert ended(one_too_many).startswith(b"HTTP/1.1 503")
        for caller in callers:
            caller.close()
        assert open_connections(http, 0) == 0
        assert http.ask("GET", "/health").status == 200


def test_grpc_holds_no_more_connections_than_it_may() -> None:
    with running_front(config=ServerConfig(max_connections=4)) as running:
        host, port = running.address.rsplit(":", 1)
        idle = [
            socket.create_connection((host, int(port)), timeout=HANG_SECONDS) for _ in range(12)
        ]
        closed = 0
        for connection in idle:
            try:
                # An accepted connection gets the server's first frame after its own preface.
                connection.sendall(
                    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
                )
                closed += not connection.recv(1 << 16)
            except ConnectionError:
                closed += 1
        for connection in idle:
            connection.close()
        assert closed >= 6
        request = pb.GenerateRequest(token_ids=ids(1, 2))
        generate = running.calls.inference.Generate
        assert list(generate(request, wait_for_ready=True, timeout=HANG_SECONDS))


READS_LITTLE_AHEAD = (("grpc.http2.lookahead_bytes", 1024), ("grpc.http2.bdp_probe", 0))


def retires_once_it_is_read(front: Front, read: Callable[[], object]) -> None:
    """Check the node's end: it waits for read(), though its engine is empty."""
    retiring = asyncio.run_coroutine_threadsafe(front.client.retire(), front.loop)
    front.engine.wait_for(m.Drain)
    # The engine's answer to this follows its answer to the drain.
    front.run(front.client.stats())
    assert not retiring.done()
    read()
    retiring.result(HANG_SECONDS)


def test_an_answer_that_is_read_slowly_is_whole_at_a_node_that_retires() -> None:
    with (
        running_front(engine=ScriptedEngine(lambda submit: [7] * 4000)) as front,
        grpc.insecure_channel(front.address, options=READS_LITTLE_AHEAD) as channel,
    ):
        messages = iter(GrpcCalls(channel).generate(1))
        answer = [next(messages)]
        retires_once_it_is_read(front, lambda: answer.extend(messages))
    assert sum(len(message.chunk.token_ids) for message in answer) == 4000
    assert answer[-1].HasField("finished")


def test_an_answer_over_http_is_waited_for_at_a_node_that_retires() -> None:
    """Hold the answer back in its route. The kernel decides how many bytes an unread connection
    takes."""
    begun, over = threading.Event(), asyncio.Event()

    async def answer(request: web.Request) -> web.Response:
        begun.set()
        await over.wait()
        return web.json_response({})

    with (
        running_http(routes=[web.post("/v1/completions", answer)]) as http,
        ThreadPoolExecutor() as pool,
    ):
        reply = pool.submit(http.post, "/v1/completions", {})
        assert begun.wait(HANG_SECONDS)
        retires_once_it_is_read(http.front, lambda: http.front.loop.call_soon_threadsafe(over.set))
        assert reply.result().status == 200
