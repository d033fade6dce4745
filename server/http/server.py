"""The HTTP server of a daemon, next to its gRPC server: probes, version, and the routes given by
its caller.

One event loop's thread. A client's disconnect cancels its handler. Invariant: a request without a
valid key costs only the reading of its header. Connections are counted first. Then Host, encoding
and expectation, key, and the caller's limits are checked in this order. Only then is the body read.
A browser's preflight is answered after the check of its Host.

HttpLog logs a malformed request head at debug level, without a traceback. Such a head needs no key,
so a stranger could otherwise fill the log. Any thread may log.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from functools import partial
from typing import Any

from aiohttp import ClientConnectionResetError, web
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.typedefs import Handler, Middleware

from tasuki.engine.messages import RequestId
from tasuki.server.auth.callers import LOOPBACK_ONLY, NOBODY, Access, Caller
from tasuki.server.bind import BindError, join_address, parse_bind, require_callers_known
from tasuki.server.drain import CallsInProgress, Rotation
from tasuki.server.openapi.document import SOCKETS, ApiDescription
from tasuki.utils.program import package_version

from .access import AllowedOrigins, http_caller, require_host, require_scope, surface_of
from .bounded_reading import (
    BODY_TURNS,
    BodyTurns,
    HttpConnections,
    MakeProtocol,
    end_with_unread_bodies,
    leave_later,
    may_send,
    refuse_encodings,
    refuse_expectations,
)
from .errors import CALLS, CHARGED, HttpRefusal, TypedRequestHandler, typed_errors
from .headers import (
    http_request_id,
    name_request,
    rename_request,
    send_added_headers,
    send_request_id,
)
from .web_sockets import OPEN_SOCKETS, OpenSockets

log = logging.getLogger(__name__)


class HttpLog(logging.LoggerAdapter[logging.Logger]):
    """The logger of aiohttp's server. Invariant: errors not caused by a client keep their level and
    traceback."""

    def __init__(self) -> None:
        super().__init__(log)

    def exception(self, msg: object, *args: object, exc_info: Any = True, **more: Any) -> None:
        if isinstance(exc_info, HttpProcessingError):
            self.debug("a head that is no HTTP: %s", exc_info.message[:200])
        elif isinstance(exc_info, ClientConnectionResetError):
            self.debug("a client left a stream: %s", exc_info)
        else:
            super().exception(msg, *args, exc_info=exc_info, **more)


# Longer than proxies keep an idle connection for further use.
_KEEP_ALIVE_SECONDS = 75.0
_TLS_HANDSHAKE_SECONDS = 10.0


LossReason = Callable[[], str | None]
"""A function returning the cause of the engine's death; None while it is alive."""

Admitted = Callable[[Caller, RequestId], AbstractAsyncContextManager[RequestId]]


def _everybody(caller: Caller, given: RequestId) -> AbstractAsyncContextManager[RequestId]:
    return nullcontext(given)


class HttpServer:
    """A started HTTP server. `drain` ends it, once."""

    def __init__(
        self,
        runner: web.AppRunner,
        listening: asyncio.Server,
        connections: HttpConnections,
        rotation: Rotation,
        host: str,
        port: int,
    ) -> None:
        self._runner = runner
        self._listening = listening
        self.connections = connections
        self._rotation = rotation
        self.port = port
        self.address = join_address(host, port)

    async def drain(self) -> None:
        """Leave the rotation, take no new requests, let requests in progress end within the
        last-writes time, then cancel them."""
        self._rotation.leave()
        self._listening.close()
        await self._runner.cleanup()


class Probes:
    """The routes for load balancers: health and readiness, and /version. lost: returns the cause of
    the engine's death; None while it is alive."""

    def __init__(self, lost: LossReason, rotation: Rotation, grpc: str = "") -> None:
        """Set up the probes. rotation: the node's place in load balancers' rotation. grpc:
        HOST:PORT of the node's gRPC server; empty: none."""
        self._lost = lost
        self._rotation = rotation
        self._grpc = {"grpc": grpc} if grpc else {}

    def routes(self) -> list[web.RouteDef]:
        return [
            # Other names of the same route: Kubernetes' and SageMaker's.
            *(web.get(path, self._health) for path in ("/health", "/healthz", "/ping")),
            web.get("/ready", self._ready),
            web.get("/version", self._version),
        ]

    async def _health(self, request: web.Request) -> web.Response:
        reason = self._lost()
        if reason is not None:
            raise HttpRefusal(503, "internal", f"the engine has died: {reason}")
        return web.json_response({"status": "ok"})

    async def _ready(self, request: web.Request) -> web.Response:
        if self._rotation.left:
            raise HttpRefusal(503, "draining", "this node is draining; try another")
        return await self._health(request)

    async def _version(self, request: web.Request) -> web.Response:
        return web.json_response({"version": package_version(), **self._grpc})


async def start_http_server(
    bind: str,
    routes: Sequence[web.RouteDef],
    lost: LossReason,
    access: Access = LOOPBACK_ONLY,
    *,
    admitted: Admitted = _everybody,
    calls: CallsInProgress | None = None,
    last_writes_seconds: float = 1.0,
    shares_port: bool = False,
    rotation: Rotation | None = None,
    grpc: str = "",
) -> HttpServer:
    """Start the HTTP server. bind: HOST:PORT; port 0 selects a free one. lost: see Probes.
    admitted: admits a caller's request before its body is read, like EngineClient.admitted();
    default: every request, under its own id. calls: counts the admitted requests while they are
    answered, and the failures. last_writes_seconds: time for requests in progress at drain().
    shares_port: other processes of this node use the port too. rotation: the node's place in load
    balancers' rotation; None: a new one for this server. grpc: the node's HOST:PORT for gRPC, shown
    by /version. Raises BindError, TlsError."""
    host, port = parse_bind(bind, access, "http_bind")
    require_callers_known(bind, access, "http_bind")
    tls = None if access.tls is None else access.tls.ssl_context()
    rotation = rotation or Rotation()
    application = _Application(host, routes, lost, access, admitted, calls, rotation, grpc)
    runner = await application.run(last_writes_seconds)
    try:
        listening = await asyncio.get_running_loop().create_server(
            application.protocol(runner),
            host,
            port,
            ssl=tls,
            ssl_handshake_timeout=None if tls is None else _TLS_HANDSHAKE_SECONDS,
            reuse_port=shares_port or None,
        )
    except OSError as error:
        await runner.cleanup()
        raise BindError(f"http_bind {bind} failed: is the port taken? Try port 0") from error
    bound = int(listening.sockets[0].getsockname()[1])
    server = HttpServer(runner, listening, application.connections, rotation, host, bound)
    log.debug("HTTP is at %s://%s/", "http" if tls is None else "https", server.address)
    return server


async def start_private_http_server(
    path: str,
    bind: str,
    routes: Sequence[web.RouteDef],
    lost: LossReason,
    access: Access,
    calls: CallsInProgress | None = None,
) -> HttpServer:
    """Start an HTTP server for other processes of this node. These processes admit the requests.
    path: path of a Unix socket in a folder private to this user, so it is plain text; keys are
    checked as elsewhere. bind: HOST:PORT of those processes, for clients. calls: argument of
    start_http_server()."""
    host, port = parse_bind(bind, access, "http_bind")
    rotation = Rotation()
    application = _Application(host, routes, lost, access, _everybody, calls, rotation)
    runner = await application.run(0.0)
    loop = asyncio.get_running_loop()
    listening = await loop.create_unix_server(application.protocol(runner), path)
    return HttpServer(runner, listening, application.connections, rotation, host, port)


class _Application:
    def __init__(
        self,
        host: str,
        routes: Sequence[web.RouteDef],
        lost: LossReason,
        access: Access,
        admitted: Admitted,
        calls: CallsInProgress | None,
        rotation: Rotation,
        grpc: str = "",
    ) -> None:
        most = access.max_connections
        self.connections = HttpConnections(most, max(1, most // 4))
        calls = calls or CallsInProgress()
        origins = AllowedOrigins(access.allowed_origins, CHARGED)
        self._application = web.Application(
            middlewares=[
                end_with_unread_bodies,
                name_request,
                typed_errors,
                require_host(host, access.allowed_hosts),
                origins.middleware(),
                refuse_encodings,
                refuse_expectations,
                require_scope(access.keys),
                _let_in(self.connections, admitted, calls),
            ],
            client_max_size=access.max_message_bytes,
        )
        self._application[BODY_TURNS] = BodyTurns()
        self._application[CALLS] = calls
        sockets = OpenSockets(self.connections, most)
        self._application[OPEN_SOCKETS] = sockets
        rotation.watch(sockets.leave)
        self._application.on_shutdown.append(sockets.end)
        self._application.on_response_prepare.append(send_request_id)
        self._application.on_response_prepare.append(send_added_headers)
        self._application.on_response_prepare.append(origins.mark)
        self._application.on_response_prepare.append(partial(_part_with_client, rotation))
        description = ApiDescription()
        served = [*Probes(lost, rotation, grpc).routes(), *description.routes(), *routes]
        self._application.add_routes([_reading_later(route) for route in served])
        surfaces = [
            (route.method, route.resource.canonical)
            for route in self._application.router.routes()
            if route.resource is not None
        ]
        description.describe(surfaces, keyed=bool(access.keys))

    async def run(self, last_writes_seconds: float) -> web.AppRunner:
        runner = web.AppRunner(
            self._application,
            handler_cancellation=True,
            shutdown_timeout=last_writes_seconds,
        )
        await runner.setup()
        return runner

    def protocol(self, runner: web.AppRunner) -> MakeProtocol:
        assert runner.server is not None
        # aiohttp takes an adapter for a logger, and None for no log; its annotations do not.
        settings: dict[str, Any] = {
            "access_log": None,
            "logger": HttpLog(),
            "auto_decompress": False,
            "keepalive_timeout": _KEEP_ALIVE_SECONDS,
            # server/http/bounded_reading.py drains unread bodies, within bounds of bytes too.
            "lingering_time": 0.0,
        }
        loop = asyncio.get_running_loop()
        make = partial(TypedRequestHandler, runner.server, loop=loop, **settings)
        return self.connections.bounded(make)


async def _part_with_client(
    rotation: Rotation, request: web.Request, response: web.StreamResponse
) -> None:
    """Close the connection after its answer if the node has left load balancers' rotation;
    WebSockets are exempt. The client's next request then reaches another node."""
    if rotation.left and not isinstance(response, web.WebSocketResponse):
        response.force_close()
        response.headers["Connection"] = "close"


def _let_in(
    connections: HttpConnections,
    admitted: Admitted,
    calls: CallsInProgress,
) -> Middleware:
    @web.middleware
    async def count(request: web.Request, handler: Handler) -> web.StreamResponse:
        caller = http_caller(request)
        if caller != NOBODY:
            connections.let_in(request.transport)
        if not request.path.startswith(CHARGED):
            return await handler(request)
        async with admitted(caller, http_request_id(request)) as request_id:
            may_send(request)
            rename_request(request, request_id)
            if surface_of(request.match_info) in SOCKETS:
                # A drain waits for their messages' calls, not for the sockets.
                return await handler(request)
            with calls.one():
                return await handler(request)

    return count


def _reading_later(route: web.RouteDef) -> web.RouteDef:
    kwargs = {**route.kwargs, "expect_handler": leave_later}
    return web.RouteDef(route.method, route.path, route.handler, kwargs)
