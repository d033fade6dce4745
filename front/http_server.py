"""The HTTP server beside a daemon's gRPC server: probes, version, and the routes it is given.

Knows no route's meaning. One event loop's thread. A client that leaves cancels its handler.
"""

from collections.abc import Callable, Sequence

from aiohttp import web

from .access import LOOPBACK_ONLY, Access
from .http_access import require_scope
from .http_errors import HttpRefusal, openai_errors
from .server import BindError, join_address, parse_bind, require_callers_known
from .version import package_version


class HttpServer:
    """A started server. `drain` ends it, once."""

    def __init__(self, runner: web.AppRunner, probes: "Probes", host: str, port: int) -> None:
        self._runner = runner
        self._probes = probes
        self.port = port
        self.address = join_address(host, port)

    def refuse_traffic(self) -> None:
        """/ready says 503 from now on; requests are still answered."""
        self._probes.draining = True

    async def drain(self) -> None:
        """Take no new requests, let those in progress end within the last-writes time, then cancel
        them."""
        self.refuse_traffic()
        await self._runner.cleanup()


class Probes:
    """What a load balancer asks. lost: why the engine has died, None while it lives."""

    def __init__(self, lost: Callable[[], str | None]) -> None:
        self._lost = lost
        self.draining = False

    def routes(self) -> list[web.RouteDef]:
        return [
            web.get("/health", self._health),
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
    last_writes_seconds: float = 1.0,
) -> HttpServer:
    """bind: HOST:PORT, port 0 picks one. Raises BindError, TlsError."""
    host, port = parse_bind(bind, access)
    require_callers_known(bind, access)
    tls = None if access.tls is None else access.tls.ssl_context()
    probes = Probes(lost)
    application = web.Application(
        middlewares=[openai_errors, require_scope(access.keys)],
        client_max_size=access.max_message_bytes,
    )
    application.add_routes([*probes.routes(), *routes])
    runner = web.AppRunner(
        application,
        handler_cancellation=True,
        access_log=None,
        shutdown_timeout=last_writes_seconds,
    )
    await runner.setup()
    try:
        await web.TCPSite(runner, host, port, ssl_context=tls).start()
    except OSError as error:
        await runner.cleanup()
        raise BindError(f"http_bind {bind} failed: is the port taken? Try port 0") from error
    return HttpServer(runner, probes, host, int(runner.addresses[0][1]))
