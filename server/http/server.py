"""The HTTP server beside a daemon's gRPC server: probes, version, and the routes it is given.

One event loop's thread. A client that leaves cancels its handler.
Invariant: a stranger's request costs no more than its header: connections are counted, then a
request's Host, its encoding, its key and its caller's limits are checked in this order, and only
then is its body read. A browser's preflight is answered after its Host was checked.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence

from aiohttp import web
from aiohttp.typedefs import Middleware

from tasuki.engine.messages import RequestId
from tasuki.server.auth.access import LOOPBACK_ONLY, Access
from tasuki.server.auth.caller import NOBODY, Caller
from tasuki.server.bind import BindError, join_address, parse_bind, require_callers_known
from tasuki.server.calls_in_progress import CallsInProgress
from tasuki.utils.version import package_version

from .auth import http_caller, require_scope
from .body import end_with_unread_bodies, leave_later, may_send, refuse_encodings
from .connections import HttpConnections
from .cors import AllowedOrigins
from .errors import HttpRefusal, typed_errors
from .host_check import require_host
from .log import HttpLog
from .request_ids import RequestIds, name_request, send_request_id

log = logging.getLogger(__name__)

# Longer than proxies keep a connection that they may use again.
_KEEP_ALIVE_SECONDS = 75.0
_TLS_HANDSHAKE_SECONDS = 10.0

# Requests to these paths count against the caller's limits.
_CHARGED = ("/v1/", "/tokenize", "/detokenize")


class HttpServer:
    """A started server. `drain` ends it, once."""

    def __init__(
        self,
        runner: web.AppRunner,
        listening: asyncio.Server,
        connections: HttpConnections,
        probes: "Probes",
        host: str,
    ) -> None:
        port = int(listening.sockets[0].getsockname()[1])
        self._runner = runner
        self._listening = listening
        self.connections = connections
        self._probes = probes
        self.port = port
        self.address = join_address(host, port)

    def refuse_traffic(self) -> None:
        """/ready answers 503 from now on; requests are still answered."""
        self._probes.draining = True

    async def drain(self) -> None:
        """Take no new requests, let those in progress end within the last-writes time, then cancel
        them."""
        self.refuse_traffic()
        self._listening.close()
        await self._runner.cleanup()


class Probes:
    """The routes of load balancers. lost: why the engine has died, None while it lives."""

    def __init__(self, lost: Callable[[], str | None]) -> None:
        self._lost = lost
        self.draining = False

    def routes(self) -> list[web.RouteDef]:
        return [
            # Clients' names for the same question: Kubernetes' and SageMaker's.
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
        if self.draining:
            raise HttpRefusal(503, "draining", "this node is draining; try another")
        return await self._health(request)

    async def _version(self, request: web.Request) -> web.Response:
        return web.json_response({"version": package_version()})


async def start_http_server(
    bind: str,
    routes: Sequence[web.RouteDef],
    lost: Callable[[], str | None],
    access: Access = LOOPBACK_ONLY,
    *,
    admit: Callable[[Caller], None] | None = None,
    calls: CallsInProgress | None = None,
    is_taken: Callable[[Caller, RequestId], bool] = lambda caller, request: False,
    last_writes_seconds: float = 1.0,
) -> HttpServer:
    """bind: HOST:PORT, port 0 picks one. admit: counts a caller's request before its body is read,
    or raises RateLimited; None: no count. calls: counts the same requests while they are answered.
    is_taken: as in RequestIds. Raises BindError, TlsError."""
    host, port = parse_bind(bind, access, "http_bind")
    require_callers_known(bind, access, "http_bind")
    tls = None if access.tls is None else access.tls.ssl_context()
    probes = Probes(lost)
    connections = HttpConnections(access.max_connections, max(1, access.max_connections // 4))
    origins = AllowedOrigins(access.allowed_origins, _CHARGED)
    application = web.Application(
        middlewares=[
            end_with_unread_bodies,
            name_request,
            typed_errors,
            require_host(host, access.allowed_hosts),
            origins.middleware(),
            refuse_encodings,
            require_scope(access.keys),
            _let_in(connections, admit, calls or CallsInProgress(), RequestIds(is_taken)),
        ],
        client_max_size=access.max_message_bytes,
    )
    application.on_response_prepare.append(send_request_id)
    application.on_response_prepare.append(origins.mark)
    application.add_routes([_reading_later(route) for route in [*probes.routes(), *routes]])
    runner = web.AppRunner(
        application,
        handler_cancellation=True,
        access_log=None,
        logger=HttpLog(),
        shutdown_timeout=last_writes_seconds,
        auto_decompress=False,
        keepalive_timeout=_KEEP_ALIVE_SECONDS,
        # server/http/body.py drains unread bodies, within bounds of bytes too.
        lingering_time=0.0,
    )
    await runner.setup()
    assert runner.server is not None
    try:
        listening = await asyncio.get_running_loop().create_server(
            connections.bounded(runner.server),
            host,
            port,
            ssl=tls,
            ssl_handshake_timeout=None if tls is None else _TLS_HANDSHAKE_SECONDS,
        )
    except OSError as error:
        await runner.cleanup()
        raise BindError(f"http_bind {bind} failed: is the port taken? Try port 0") from error
    server = HttpServer(runner, listening, connections, probes, host)
    log.info("HTTP is at %s://%s/", "http" if tls is None else "https", server.address)
    return server


def _let_in(
    connections: HttpConnections,
    admit: Callable[[Caller], None] | None,
    calls: CallsInProgress,
    ids: RequestIds,
) -> Middleware:
    @web.middleware
    async def count(
        request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        caller = http_caller(request)
        if caller != NOBODY:
            connections.let_in(request.transport)
        if not request.path.startswith(_CHARGED):
            return await handler(request)
        if admit is not None:
            admit(caller)
        may_send(request)
        with calls.one(), ids.held(request, caller):
            return await handler(request)

    return count


def _reading_later(route: web.RouteDef) -> web.RouteDef:
    kwargs = {**route.kwargs, "expect_handler": leave_later}
    return web.RouteDef(route.method, route.path, route.handler, kwargs)
