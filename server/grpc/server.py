"""The gRPC server of every daemon's services: health, reflection, keepalive, message cap.

Server: the started server; it reads no message. Thread rule: a server lives on the event loop it
was started on; another loop may end it.

Bridge: runs a gRPC server on one event loop and the services' methods on another. It is the first
interceptor. Messages cross as bytes, so reading them and checking the caller cost the server's loop
nothing. Thread rule: intercept_service and its returned handler run on the server's loop. Later
interceptors, handlers and deserializers run on the services' loop, with a context calling back to
the server's loop. Invariants: the end of a call on either side ends it on the other. If the other
loop is blocked, the caller gets a typed error after `patience` seconds, and the server's loop loses
nothing.
"""

import asyncio
import inspect
import logging
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, TypeAlias

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from tasuki.server.auth.callers import LOOPBACK_ONLY, Access
from tasuki.server.auth.surfaces import is_for_peers
from tasuki.server.bind import BindError, join_address, parse_bind, require_callers_known
from tasuki.server.drain import CallsInProgress, Rotation
from tasuki.server.errors import CallContext, Failed, LoopBehind
from tasuki.utils.loops import run_on

from .interceptors import (
    Continuation,
    MalformedRequests,
    Method,
    ReadMessage,
    RequireScope,
    UnimplementedMethods,
    method_of,
    refusing,
)

log = logging.getLogger(__name__)

_OPTIONS = (
    # Gateways ping often and without calls; gRPC's defaults would cut the connection.
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 10_000),
    ("grpc.http2.max_ping_strikes", 0),
    # Detects clients gone without closing the connection.
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    # Unauthenticated peers hold a connection only while they use it, and take little of this node
    # meanwhile.
    ("grpc.server_handshake_timeout_ms", 10_000),
    ("grpc.max_connection_idle_ms", 300_000),
    ("grpc.max_concurrent_streams", 4096),
    ("grpc.max_metadata_size", 16 * 2**10),
    ("grpc.absolute_max_metadata_size", 32 * 2**10),
)

# Generic for type checkers only.
Interceptor: TypeAlias = "grpc.aio.ServerInterceptor[Any, Any]"

_PATIENCE_SECONDS = 30.0

# Longest wait of a server's end for a dead or blocked loop, in seconds.
_LATE_SECONDS = 5.0


class Bridge(grpc.aio.ServerInterceptor):  # type: ignore[type-arg]
    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        stay: Sequence[str],
        failed: Failed,
        patience: float = _PATIENCE_SECONDS,
    ) -> None:
        """Set up the bridge. loop: event loop of the services' methods. stay: full names of
        services with methods on the server's loop, like gRPC's own. failed: called on `loop` for
        each call rejected here. patience: timeout in seconds for `loop` to begin a call."""
        self._loop = loop
        self._stay = (*(f"/{service}/" for service in stay), "/grpc.")

        def count(kind: str) -> None:
            loop.call_soon_threadsafe(failed, kind)

        self._failed = count
        self._patience = patience

    async def intercept_service(
        self,
        continuation: Continuation,
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        if handler_call_details.method.startswith(self._stay):
            return await continuation(handler_call_details)

        async def found() -> Any:
            return await continuation(handler_call_details)

        try:
            handler = await asyncio.wait_for(run_on(self._loop, found()), self._patience)
        except TimeoutError:
            return refusing(
                LoopBehind(
                    f"this node's callers have waited for more than {self._patience:g} s: ask "
                    "another node, or this one again later"
                ),
                self._failed,
            )
        return None if handler is None else _bridged(handler, self._loop)


class _Crossing:
    """The context of a call for its method on the services' loop. Waiting methods run on the
    server's loop; attributes are read and set directly."""

    def __init__(
        self,
        context: CallContext,
        home: asyncio.AbstractEventLoop,
        serialize: Callable[[Any], bytes],
    ) -> None:
        self._context = context
        self._home = home
        self._serialize = serialize

    async def write(self, message: Any) -> None:
        await self._there(self._context.write, self._serialize(message))

    async def send_initial_metadata(self, metadata: Any) -> None:
        await self._there(self._context.send_initial_metadata, metadata)

    async def abort(self, code: grpc.StatusCode, details: str = "", trailer: Any = ()) -> None:
        """Abort the call with a status. Raises, as gRPC's own abort()."""
        await self._there(self._context.abort, code, details, trailer)

    async def _there(self, method: Method, *arguments: Any) -> None:
        async def call() -> None:
            await method(*arguments)

        await run_on(self._home, call())

    async def requests(self, given: AsyncIterator[bytes], read: ReadMessage) -> AsyncIterator[Any]:
        async def following() -> bytes | None:
            return await anext(given, None)

        while (data := await run_on(self._home, following())) is not None:
            yield read(data)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._context, name)


def _bridged(handler: Any, loop: asyncio.AbstractEventLoop) -> Any:
    """Return a handler of the same kind for the server's loop. Its method runs on `loop`."""
    method, build = method_of(handler)
    read = handler.request_deserializer or _as_it_is
    serialize = handler.response_serializer or _as_it_is

    async def answer(given: Any, context: Any) -> Any:
        asked = context.requests(given, read) if handler.request_streaming else read(given)
        answered = method(asked, context)
        if inspect.isasyncgen(answered):
            async with aclosing(answered) as messages:
                async for message in messages:
                    await context.write(message)
            return None
        if inspect.isawaitable(answered):
            answered = await answered
        return None if handler.response_streaming else serialize(answered)

    async def call(given: Any, context: CallContext) -> Any:
        crossing = _Crossing(context, asyncio.get_running_loop(), serialize)
        return await run_on(loop, answer(given, crossing))

    return build(call)


def _as_it_is(message: Any) -> Any:
    return message


@dataclass(frozen=True)
class Service:
    """One gRPC service of a node. name: full name in the .proto, with its package. register: adds
    the servicer to a server."""

    name: str
    register: Callable[[grpc.aio.Server], None]


class Server:
    """A started gRPC server. `drain` ends it, once."""

    def __init__(
        self,
        server: grpc.aio.Server,
        host: str,
        port: int,
        health_servicer: Any,
        names: Sequence[str],
        rotation: Rotation,
    ) -> None:
        """Wrap a started server. names: services with a health status. rotation: the node's place
        in load balancers' rotation; after the node leaves it, the services are NOT_SERVING."""
        self._loop = asyncio.get_running_loop()
        self._server = server
        self._health = health_servicer
        self._names = names
        self._rotation = rotation
        self._showing = asyncio.Lock()
        rotation.watch(self._rotation_changed)
        self.port = port
        self.address = join_address(host, port)

    async def refuse_traffic(self) -> None:
        """Report NOT_SERVING for every service from now on; calls are still answered."""
        await self._there(self._health.enter_graceful_shutdown(), _LATE_SECONDS)

    def _rotation_changed(self) -> None:
        asyncio.run_coroutine_threadsafe(self._show_health(), self._loop)

    async def _show_health(self) -> None:
        async with self._showing:
            status = health_pb2.HealthCheckResponse
            shown = status.NOT_SERVING if self._rotation.left else status.SERVING
            for name in self._names:
                await self._health.set(name, shown)

    async def drain(self, timeout: float) -> None:
        """Take no new calls, let calls in progress end within `timeout` seconds, then cancel them.
        A late end is only logged."""
        await self._there(self._stop(timeout), timeout + _LATE_SECONDS)

    async def _stop(self, timeout: float) -> None:
        await self._server.stop(timeout)

    async def _there(self, coroutine: Coroutine[Any, Any, None], timeout: float) -> None:
        try:
            await asyncio.wait_for(run_on(self._loop, coroutine), timeout)
        except TimeoutError:
            log.warning("the server at %s does not end: it ends with the process", self.address)


async def start_server(
    bind: str,
    services: Sequence[Service],
    access: Access = LOOPBACK_ONLY,
    bridge: Bridge | None = None,
    forward: "Interceptor | None" = None,
    *,
    calls: CallsInProgress | None = None,
    shares_port: bool = False,
    rotation: Rotation | None = None,
) -> Server:
    """Start the gRPC server. bind: HOST:PORT; port 0 selects a free one. bridge: bridge to the
    services' loop; None: this loop. forward: takes calls with a good key, before the services.
    calls: counts the failures. shares_port: other processes of this node use the port too.
    rotation: the node's place in load balancers' rotation; None: always in rotation. Raises
    BindError, TlsError."""
    host, _ = parse_bind(bind, access)
    if not all(is_for_peers(service.name) for service in services):
        require_callers_known(bind, access)
    credentials = None if access.tls is None else access.tls.grpc_credentials()
    interceptors = _interceptors(access, calls or CallsInProgress(), bridge, forward)
    server, health_servicer, names = await _built(services, interceptors, access, shares_port)
    try:
        if credentials is None:
            bound = server.add_insecure_port(bind)
        else:
            bound = server.add_secure_port(bind, credentials)
    except RuntimeError as error:
        raise BindError(f"bind {bind} failed: is the port taken? Try port 0") from error
    await server.start()
    return Server(server, host, bound, health_servicer, names, rotation or Rotation())


async def start_private_server(
    path: str,
    services: Sequence[Service],
    access: Access,
    calls: CallsInProgress | None = None,
) -> Server:
    """Start a gRPC server for other processes of this node. path: path of a Unix socket in a folder
    private to this user, so it is plain text; keys are checked as elsewhere. calls: argument of
    start_server()."""
    interceptors = _interceptors(access, calls or CallsInProgress())
    server, health_servicer, names = await _built(services, interceptors, access, False)
    server.add_insecure_port(f"unix:{path}")
    await server.start()
    return Server(server, path, 0, health_servicer, names, Rotation())


def _interceptors(
    access: Access,
    calls: CallsInProgress,
    bridge: Bridge | None = None,
    forward: "Interceptor | None" = None,
) -> list[Interceptor]:
    """Return the interceptors in the order of their run. The bridge is first, so callers are
    checked on the services' loop, as over HTTP. A call is forwarded only after the check of its
    key."""
    order = (
        *(bridge, RequireScope(access.keys, calls.failed), forward),
        *(MalformedRequests(calls.failed), UnimplementedMethods(calls.failed)),
    )
    return [one for one in order if one is not None]


async def _built(
    services: Sequence[Service],
    interceptors: Sequence[Interceptor],
    access: Access,
    shares_port: bool,
) -> tuple[grpc.aio.Server, Any, tuple[str, ...]]:
    """Return a gRPC server without a port, its health servicer, and the names of services with a
    health status. All services are SERVING."""
    limits = (
        ("grpc.max_receive_message_length", access.max_message_bytes),
        ("grpc.max_send_message_length", access.max_message_bytes),
        ("grpc.max_allowed_incoming_connections", access.max_connections),
    )
    # Two daemons on one port would share its calls at random.
    options = (*_OPTIONS, ("grpc.so_reuseport", int(shares_port)), *limits)
    server = grpc.aio.server(interceptors=interceptors, options=options)
    health_servicer = health.aio.HealthServicer()  # type: ignore[attr-defined]
    health_pb2_grpc.add_HealthServicer_to_server(health_servicer, server)
    names = [service.name for service in services]
    for service in services:
        service.register(server)
    reflection.enable_server_reflection(
        [*names, health.SERVICE_NAME, reflection.SERVICE_NAME], server
    )
    shown = ("", *names)
    for name in shown:
        await health_servicer.set(name, health_pb2.HealthCheckResponse.SERVING)
    return server, health_servicer, shown
