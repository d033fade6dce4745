"""Where a server may listen, and what it tells those who ask."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from tasuki.server.auth.access import Access
from tasuki.server.bind import BindError
from tasuki.server.grpc.server import Server, start_server
from tasuki.server.http.server import HttpServer, start_http_server

from tests.harness.front_fixtures import running_front

LOOPBACK = Access()
Start = Callable[[str], Awaitable[Server | HttpServer]]


async def listen(bind: str, access: Access = LOOPBACK) -> Server:
    return await start_server(bind, [], access)


async def listen_http(bind: str, access: Access = LOOPBACK) -> HttpServer:
    return await start_http_server(bind, [], lambda: None, access)


STARTS = pytest.mark.parametrize("start", [listen, listen_http])


@STARTS
@pytest.mark.parametrize(
    ("bind", "part"),
    [
        ("0.0.0.0:0", "not a loopback address"),
        ("[::]:0", "not a loopback address"),
        ("example.test:0", "not a loopback address"),
        ("127.0.0.1", "HOST:PORT"),
        (":80", "HOST:PORT"),
        ("127.0.0.1:http", "HOST:PORT"),
        ("127.0.0.1:65536", "HOST:PORT"),
    ],
)
def test_bad_binds_are_refused(start: Start, bind: str, part: str) -> None:
    with pytest.raises(BindError, match=part):
        asyncio.run(start(bind))


def test_a_non_loopback_bind_needs_the_flag() -> None:
    async def check() -> None:
        server = await listen("0.0.0.0:0", Access(insecure=True))
        await server.drain(0)
        assert server.port > 0

    asyncio.run(check())


@STARTS
def test_a_port_that_is_taken_is_refused(start: Start) -> None:
    async def listen_twice() -> None:
        first = await listen("127.0.0.1:0")
        try:
            with pytest.raises(BindError, match="is the port taken"):
                await start(first.address)
        finally:
            await first.drain(0)

    asyncio.run(listen_twice())


def test_reflection_lists_the_services() -> None:
    with running_front() as front:
        ask = reflection_pb2.ServerReflectionRequest(list_services="")
        stub = reflection_pb2_grpc.ServerReflectionStub(front.channel)
        (reply,) = list(stub.ServerReflectionInfo(iter([ask])))
    names = {service.name for service in reply.list_services_response.service}
    assert names >= {"tasuki.v1.Inference", "tasuki.v1.Session", "tasuki.v1.CacheAdmin"}
    assert "grpc.health.v1.Health" in names
