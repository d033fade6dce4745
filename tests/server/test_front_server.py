"""Tests of a server's listening addresses and of its answers to callers."""

import asyncio
from collections.abc import Awaitable, Callable

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from tasuki.server.auth.callers import OWNER, Access, ApiKeys, Caller
from tasuki.server.bind import BindError, join_address, parse_bind, require_callers_known
from tasuki.server.grpc.server import Server, Service, start_server
from tasuki.server.http.server import HttpServer, start_http_server
from tasuki.utils.tls import ServerTls
from tests.harness.grpc_fixtures import running_front

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


async def test_a_non_loopback_bind_needs_the_flag() -> None:
    server = await listen("0.0.0.0:0", Access(insecure=True))
    await server.drain(0)
    assert server.port > 0


@STARTS
async def test_a_port_that_is_taken_is_refused(start: Start) -> None:
    first = await listen("127.0.0.1:0")
    try:
        with pytest.raises(BindError, match="is the port taken"):
            await start(first.address)
    finally:
        await first.drain(0)


def test_reflection_lists_the_services() -> None:
    with running_front() as front:
        ask = reflection_pb2.ServerReflectionRequest(list_services="")
        stub = reflection_pb2_grpc.ServerReflectionStub(front.channel)
        (reply,) = list(stub.ServerReflectionInfo(iter([ask])))
    names = {service.name for service in reply.list_services_response.service}
    assert names >= {"tasuki.v1.Inference", "tasuki.v1.Session", "tasuki.v1.CacheAdmin"}
    assert "grpc.health.v1.Health" in names


@pytest.mark.parametrize(
    ("bind", "host", "port"),
    [
        ("127.0.0.1:0", "127.0.0.1", 0),
        ("127.8.9.1:65535", "127.8.9.1", 65535),
        ("localhost:80", "localhost", 80),
        ("[::1]:8080", "::1", 8080),
    ],
)
def test_loopback_has_several_names(bind: str, host: str, port: int) -> None:
    assert parse_bind(bind, Access()) == (host, port)
    require_callers_known(bind, Access())
    assert join_address(host, port) == bind


@pytest.mark.parametrize(
    ("access", "known"),
    [
        (Access(insecure=True), False),
        (Access(insecure=True, api_key="a-key"), True),
        (Access(insecure=True, more_keys=ApiKeys({Caller("ann"): "a-key"})), True),
        (Access(tls=ServerTls("certificate", "key")), False),
        (Access(tls=ServerTls("certificate", "key", "authority")), True),
    ],
    ids=["nothing", "own key", "a file of keys", "tls", "certificates"],
)
def test_off_loopback_a_caller_needs_a_key_or_a_certificate(access: Access, known: bool) -> None:
    assert parse_bind("0.0.0.0:1", access) == ("0.0.0.0", 1)
    if known:
        require_callers_known("0.0.0.0:1", access)
        return
    with pytest.raises(BindError, match="identifies no caller"):
        require_callers_known("0.0.0.0:1", access)
    if access.tls is None:
        served = Service("tasuki.v1.CacheAdmin", lambda server: None)
        with pytest.raises(BindError, match="identifies no caller"):
            asyncio.run(start_server("0.0.0.0:0", [served], access))


def test_a_server_that_ends_says_so_to_health_checks_and_still_answers() -> None:
    async def scenario() -> list[int]:
        server = await start_server("127.0.0.1:0", [Service("a.service", lambda server: None)])
        found = []
        async with grpc.aio.insecure_channel(server.address) as channel:
            check = health_pb2_grpc.HealthStub(channel).Check
            for _ in range(2):
                for name in ("", "a.service"):
                    reply = await check(health_pb2.HealthCheckRequest(service=name))
                    found.append(reply.status)
                await server.refuse_traffic()
        await server.drain(0)
        return found

    statuses = health_pb2.HealthCheckResponse
    assert asyncio.run(scenario()) == [statuses.SERVING] * 2 + [statuses.NOT_SERVING] * 2


def test_who_has_a_key_of_a_file_is_one_of_many() -> None:
    assert Caller("ann").is_one_of_many and not OWNER.is_one_of_many
