"""Tests of permissions: every method and route of running nodes, called with every kind of key."""

import asyncio
import re
import threading
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import pytest
from aiohttp import web
from grpc_health.v1 import health_pb2, health_pb2_grpc

from scripts.docs.surface_table import surface_table
from tasuki.server.auth.callers import CERTIFIED, EVERY_SCOPE, Access, Caller, Scope
from tasuki.server.auth.surfaces import ANY_METHOD, GRPC, HTTP, Needs, Unscoped, suffices
from tasuki.server.bind import BindError
from tasuki.server.config import ServerConfig
from tasuki.server.grpc.server import Service, start_server
from tasuki.server.http.server import start_http_server
from tasuki.utils.tls import ClientTls
from tests.harness.api_keys import headers, keys_file, metadata
from tests.harness.certificates import Authority
from tests.harness.daemons import Node, flags
from tests.harness.forked_daemon import ForkedDaemon
from tests.harness.grpc_calls import GrpcCalls
from tests.harness.grpc_fixtures import running_front
from tests.harness.http_calls import JSON, connect
from tests.harness.refusals import refusal
from tests.harness.registered_routes import read, serve_and_list
from tests.harness.running_nodes import HTTP as HTTP_FLAGS
from tests.harness.running_nodes import require_nixl, running
from tests.harness.smg_process import protocol_is_there
from tests.harness.waiting import HANG_SECONDS

SECURITY = Path(__file__).parents[2] / "docs" / "security.md"
KEYS = {scope: f"a-key-good-for-{scope.value}-alone" for scope in Scope}
WRONG = "a-key-of-nobody"
LET_IN_SECONDS = 0.5
# Methods that end the walk or outlast it, each with the method to undo it.
UNDONE_BY = {"/tasuki.v1.CacheAdmin/Drain": "/tasuki.v1.CacheAdmin/Undrain"}


@dataclass(frozen=True)
class Walked:
    node: Node
    methods: set[str]
    routes: set[tuple[str, str]]


@pytest.fixture(
    scope="module",
    params=[
        (role, gateway) for role in ("serve", "decode", "prefill") for gateway in (False, True)
    ],
    ids=lambda wanted: f"{wanted[0]}-gateway" if wanted[1] else wanted[0],
)
def walked(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Walked]:
    role, gateway = request.param
    if role != "serve":
        require_nixl()
    if gateway and not protocol_is_there():
        pytest.skip("smg-grpc-proto is not installed")
    folder = tmp_path_factory.mktemp("keys")
    lines = [f"{scope.value}-only {key} {scope.value}\n" for scope, key in KEYS.items()]
    keys, listed = keys_file(folder, "".join(lines)), folder / "routes"
    node = Node(
        role,
        *(*flags(), *(["--gateway"] if gateway else [])),
        *("--api-keys", keys, *HTTP_FLAGS),
        launch=partial(ForkedDaemon, main=partial(serve_and_list, listed)),
    )
    with running(node):
        yield Walked(node, *read(listed))


@dataclass(frozen=True)
class Outcome:
    status: grpc.StatusCode
    kind: str
    message: str


def call(
    channel: grpc.Channel,
    method: str,
    key: str | None,
    message: bytes,
    seconds: float = HANG_SECONDS,
) -> Outcome:
    """Return the status of the first answer: OK if one arrives, otherwise the call's error.
    seconds: longest wait for an answer after the headers; every stream sends these at once."""
    borne = () if key is None else metadata(key)
    asked = channel.stream_stream(method)(iter([message]), metadata=borne, timeout=HANG_SECONDS)
    over = threading.Event()

    def end_silence() -> None:
        asked.initial_metadata()
        if not over.wait(seconds):
            asked.cancel()

    ending = threading.Thread(target=end_silence)
    ending.start()
    try:
        next(asked, None)
    except grpc.RpcError as error:
        trailing = dict(error.trailing_metadata() or ())
        return Outcome(error.code(), str(trailing.get("tasuki-error-kind")), str(error.details()))
    finally:
        over.set()
        asked.cancel()
        ending.join()
    return Outcome(grpc.StatusCode.OK, "", "")


CREDENTIALS: list[tuple[str | None, Caller | None]] = [
    (None, None),
    (WRONG, None),
    *((key, Caller(f"{scope.value}-only", frozenset({scope}))) for scope, key in KEYS.items()),
]


def named_scopes(needs: Needs) -> set[str]:
    assert isinstance(needs, frozenset)
    return {scope.value for scope in needs}


def test_every_method_of_a_node_is_in_the_table_and_asks_for_what_it_says(walked: Walked) -> None:
    assert walked.methods >= {"/tasuki.v1.CacheAdmin/ChangeRole", "/grpc.health.v1.Health/List"}
    assert walked.methods <= GRPC.keys(), walked.methods - GRPC.keys()
    with grpc.insecure_channel(walked.node.address) as channel:
        for method in sorted(walked.methods):
            for key, caller in CREDENTIALS:
                if suffices(GRPC[method], caller):
                    # A silent stream counts as let in as well.
                    got = call(channel, method, key, b"", LET_IN_SECONDS)
                    assert got.kind not in ("invalid_api_key", "permission_denied"), (method, got)
                    if method in UNDONE_BY:
                        call(channel, UNDONE_BY[method], key, b"")
                    continue
                # The call is refused before it is read, so no field is named.
                got = call(channel, method, key, b"\xff")
                told = (method, key, got)
                if caller is None:
                    assert got.status is grpc.StatusCode.UNAUTHENTICATED, told
                    assert got.kind == "invalid_api_key", told
                else:
                    assert got.status is grpc.StatusCode.PERMISSION_DENIED, told
                    assert got.kind == "permission_denied", told
                    assert caller.name in got.message, told
                    assert all(name in got.message for name in named_scopes(GRPC[method])), told
                assert not any(secret in got.message for secret in (*KEYS.values(), WRONG)), told
    assert not any("Traceback" in line for line in walked.node.last_words), walked.node.last_words


def fetch(address: str, method: str, path: str, key: str | None) -> tuple[int, bytes]:
    """Return the status, and the body of a refusal."""
    with closing(connect(address)) as connection:
        body = b"{}" if method == "POST" else None
        connection.request(method, path, body, JSON | ({} if key is None else headers(key)))
        reply = connection.getresponse()
        return reply.status, reply.read() if reply.status >= 400 else b""


def test_every_route_of_a_node_is_in_the_table_and_asks_for_what_it_says(walked: Walked) -> None:
    rows = {("GET" if method == "HEAD" else method, path) for method, path in walked.routes}
    assert rows >= {("GET", "/metrics"), ("GET", "/debug/requests"), ("GET", "/health")}
    assert rows <= HTTP.keys(), rows - HTTP.keys()
    for method, pattern in sorted(walked.routes):
        row = ("GET" if method == "HEAD" else method, pattern)
        path = re.sub(r"\{[a-z]+\}", "x", pattern)
        for key, caller in CREDENTIALS:
            asked = "POST" if method == ANY_METHOD else method
            status, body = fetch(walked.node.http_address, asked, path, key)
            told = (row, key, status, body)
            if suffices(HTTP[row], caller):
                assert status not in (401, 403), told
            else:
                assert status == (401 if caller is None else 403), told
                code = b"invalid_api_key" if caller is None else b"permission_denied"
                if pattern.startswith("/v1/messages"):
                    code = b"authentication_error" if caller is None else b"permission_error"
                assert method == "HEAD" or code in body, told
            assert not any(secret.encode() in body for secret in (*KEYS.values(), WRONG)), told
    for key, wanted in ((None, 401), (WRONG, 401), (KEYS[Scope.METRICS], 404)):
        assert fetch(walked.node.http_address, "GET", "/nothing/here", key)[0] == wanted


def test_a_plain_key_gets_at_prompts_and_at_nothing_of_the_node_s() -> None:
    """Compare with a list written out here. A table that lets too much through would agree with
    itself."""
    plain = Caller("ann")
    assert {name for name, needs in GRPC.items() if suffices(needs, plain)} == {
        "/tasuki.v1.Inference/Generate",
        "/tasuki.v1.Inference/Abort",
        *(f"/tasuki.v1.Session/{name}" for name in ("Open", "Append", "Generate", "Fork", "Close")),
        *(f"/tasuki.v1.Session/{name}" for name in ("Load", "HandBack")),
        "/tasuki.v1.CacheAdmin/Explain",
        *(f"/grpc.health.v1.Health/{name}" for name in ("Check", "List", "Watch")),
        "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
        *(
            f"/tasuki.handover.v1.Handover/{name}"
            for name in (
                "Connect",
                "Heartbeat",
                "Transfer",
                "Pictures",
                "Abort",
                "Usable",
                "TakeOver",
            )
        ),
    }
    opened = {path for (_, path), needs in HTTP.items() if suffices(needs, None)}
    assert opened == {"/health", "/healthz", "/ping", "/ready", "/", "/page/{name}", "/docs"}
    granted = {path for (_, path), needs in HTTP.items() if suffices(needs, plain)} - opened
    assert granted == {
        "/openapi.json",
        *("/version", "/v1/chat/completions", "/v1/completions", "/v1/models", "/v1/models/{name}"),
        *("/v1/messages", "/v1/messages/count_tokens", "/v1/responses", "/v1/responses/{name}"),
        *("/v1/{path}", "/tokenize", "/detokenize", "/tokenizer_info"),
        *("/v1/responses/input_tokens", "/v1/responses/{name}/input_items"),
        *("/v1/responses/compact", "/v1/responses/{name}/cancel"),
        *("/v1/conversations", "/v1/conversations/{name}", "/v1/conversations/{name}/items"),
        "/v1/conversations/{name}/items/{item}",
    }


@pytest.mark.parametrize("scope", Scope)
def test_no_scope_holds_another(scope: Scope) -> None:
    alone = Caller("one", frozenset({scope}))
    rest = Caller("rest", EVERY_SCOPE - {scope})
    asked = [needs for needs in (*GRPC.values(), *HTTP.values()) if needs == frozenset({scope})]
    assert asked, "no surface needs it"
    assert all(suffices(needs, alone) and not suffices(needs, rest) for needs in asked)


def test_the_document_shows_the_table_that_is_asked() -> None:
    wanted = "run: python -m scripts.docs.surface_table, and paste it"
    assert surface_table() in SECURITY.read_text(encoding="utf-8"), wanted


async def _answer(request: Any, context: Any) -> bytes:
    return b"served"


def test_what_is_not_in_the_table_is_served_to_nobody() -> None:
    forgotten = ("tasuki.v1.Forgotten", "somebody.else.Forgotten")

    def register(name: str, server: grpc.aio.Server) -> None:
        handler = grpc.unary_unary_rpc_method_handler(_answer)
        server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler(name, {"Ask": handler}),)
        )

    async def serve(request: web.Request) -> web.Response:
        return web.Response(text="served")

    async def ask(access: Access, key: str | None, known: bool = True) -> None:
        services = [Service(name, partial(register, name)) for name in forgotten]
        server = await start_server("127.0.0.1:0", services, access)
        http_server = await start_http_server(
            "127.0.0.1:0", [web.get("/forgotten", serve)], lambda: None, access
        )
        try:
            with grpc.insecure_channel(server.address) as channel:
                for name in forgotten:
                    got = await asyncio.to_thread(call, channel, f"/{name}/Ask", key, b"")
                    if not known:
                        assert got.status is grpc.StatusCode.UNAUTHENTICATED, got
                        continue
                    assert got.status is grpc.StatusCode.UNIMPLEMENTED, got
                    assert got.kind == "not_served_here"
            for path, status in (("/forgotten", 501), ("/nowhere", 404)):
                reply = await asyncio.to_thread(fetch, http_server.address, "GET", path, key)
                assert reply[0] == (status if known else 401), reply
                assert not known or status == 404 or b"not_served_here" in reply[1]
        finally:
            await server.drain(0)
            await http_server.drain()

    asyncio.run(ask(Access(), None))
    asyncio.run(ask(Access(api_key="secret"), "secret"))
    asyncio.run(ask(Access(api_key="secret"), None, known=False))


@pytest.mark.parametrize(
    "fields",
    [{"insecure": True}, {"tls_cert": "CERTIFICATE", "tls_key": "KEY"}],
    ids=["insecure", "tls"],
)
def test_off_loopback_a_node_without_keys_does_not_start(
    tmp_path: Path, fields: dict[str, Any]
) -> None:
    issued = Authority(tmp_path, "ours").issue()
    paths = {"CERTIFICATE": issued.certificate, "KEY": issued.key}
    fields = {name: paths.get(str(value), value) for name, value in fields.items()}
    service = Service("tasuki.v1.CacheAdmin", lambda server: None)

    async def start(config: ServerConfig) -> None:
        server = await start_server("0.0.0.0:0", [service], config.access)
        await server.drain(0)

    async def start_http(config: ServerConfig) -> None:
        server = await start_http_server("0.0.0.0:0", [], lambda: None, config.access)
        await server.drain()

    for starts in (start, start_http):
        with pytest.raises(BindError, match="--api-key or --api-keys"):
            asyncio.run(starts(ServerConfig(bind="0.0.0.0:0", **fields)))
        asyncio.run(starts(ServerConfig(bind="0.0.0.0:0", api_key="secret", **fields)))


async def test_the_hand_over_s_server_asks_its_peers_for_no_key() -> None:
    service = Service("tasuki.handover.v1.Handover", lambda server: None)
    server = await start_server("0.0.0.0:0", [service], Access(insecure=True))
    await server.drain(0)


def test_a_certificate_alone_owns_no_node_that_others_reach(tmp_path: Path) -> None:
    authority = Authority(tmp_path, "ours")
    issued = authority.issue()
    tls = {"tls_cert": issued.certificate, "tls_key": issued.key, "tls_client_ca": authority.path}
    assert ServerConfig(bind="0.0.0.0:0", **tls).access.keys.caller([]) == CERTIFIED
    assert ServerConfig(http_bind="[::]:0", **tls).access.keys.caller([]) == CERTIFIED
    assert not CERTIFIED.may(Scope.OPERATOR)
    credentials = ClientTls(authority.path, issued.certificate, issued.key).grpc_credentials()
    with (
        running_front(config=ServerConfig(bind="0.0.0.0:0", **tls)) as front,
        grpc.secure_channel(front.address, credentials) as channel,
    ):
        calls = GrpcCalls(channel)
        assert refusal(calls.stats).status is grpc.StatusCode.PERMISSION_DENIED
        assert list(calls.generate(5))


def test_two_values_of_the_header_are_no_key() -> None:
    key = ("authorization", "Bearer secret")
    with running_front(config=ServerConfig(api_key="secret")) as front:
        GrpcCalls(front.channel, (key,)).stats()
        for given in (
            (key, key),
            (("authorization", "Bearer other"), key),
            (("authorization", "bearer secret"),),
            (("authorization", "Bearer  secret"),),
        ):
            refused = refusal(GrpcCalls(front.channel, given).stats)
            assert refused.status is grpc.StatusCode.UNAUTHENTICATED, given


def test_a_method_that_a_servicer_leaves_out_writes_no_traceback(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with running_front() as front:
        health = health_pb2_grpc.HealthStub(front.channel)
        refused = refusal(health.List, health_pb2.HealthListRequest(), timeout=HANG_SECONDS)
        assert refused.status is grpc.StatusCode.UNIMPLEMENTED
    assert not caplog.records, caplog.text


def test_the_open_surfaces_are_open_where_there_are_keys() -> None:
    assert suffices(Unscoped.OPEN, None) and suffices(Unscoped.PEER, None)
    assert not suffices(Unscoped.ANY_KEY, None) and suffices(Unscoped.ANY_KEY, Caller("ann"))
