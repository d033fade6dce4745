"""What every daemon shares: engine thread, its client, services, the gRPC and the HTTP server.

Does not know roles or hand-overs. One event loop's thread; the engine has its own. Life: startup,
then whatever the daemon waits for, then shutdown, once each.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence

from aiohttp import web

from ..dashboard.exposition import Exposition
from ..engine.engine import Engine
from ..engine.messages import Finished, Inbox, Outbox, Rejected, TokenOut
from ..engine.thread import EngineThread
from .config import FrontConfig
from .engine_client import EngineClient
from .handover_status import HandoverStatus, HandoverStatusSource
from .http_metrics import MetricsHandler
from .http_server import HttpServer, start_http_server
from .request_lines import log_ended
from .server import BindError, Server, Service, start_server
from .tls import TlsError
from .tracing import NoTracing, Tracing

log = logging.getLogger(__name__)

# What answers already made may take to reach their clients once the engine is empty.
_LAST_WRITES_SECONDS = 1.0


def no_routes(engine: EngineClient) -> Sequence[web.RouteDef]:
    """HTTP answers probes and metrics only."""
    return ()


Observer = Callable[[TokenOut | Finished | Rejected], None]


def _both(first: Observer, second: Observer) -> Observer:
    def observe(message: TokenOut | Finished | Rejected) -> None:
        first(message)
        second(message)

    return observe


class Node:
    """Owns the engine thread and the servers. Build it inside a running event loop."""

    def __init__(
        self,
        engine: Engine,
        config: FrontConfig,
        services: Callable[[EngineClient], Sequence[Service]],
        handover: Callable[[Outbox], None] | None = None,
        routes: Callable[[EngineClient], Sequence[web.RouteDef]] = no_routes,
        status: HandoverStatusSource = HandoverStatus,
        tracing: Tracing | None = None,
    ) -> None:
        """services, routes: what this role serves over its engine by gRPC and by HTTP. handover:
        takes the engine's hand-over messages, on the engine's thread. status: of the hand-overs
        behind this node. tracing: closed with the node."""
        self._config = config
        self._loop = asyncio.get_running_loop()
        exposition = Exposition(config.metrics_compat)
        self.tracing = tracing or NoTracing()
        self.engine = EngineClient(
            self.post,
            self._loop,
            handover,
            observe=_both(exposition.observe, log_ended),
            limits=config.limits,
            tracing=self.tracing,
        )
        self._thread = EngineThread(engine, self.engine.deliver, self._engine_lost)
        self._services = services(self.engine)
        metrics = MetricsHandler(self.engine, exposition, status)
        self._routes = [web.get("/metrics", metrics.handle), *routes(self.engine)]
        self._server: Server | None = None
        self._http: HttpServer | None = None

    def _engine_lost(self, reason: str) -> None:
        self._loop.call_soon_threadsafe(self.engine.engine_lost, reason)

    def post(self, message: Inbox) -> None:
        """To the engine, from any thread."""
        self._thread.post(message)

    @property
    def http_address(self) -> str | None:
        """HOST:PORT of the HTTP server; None where there is none."""
        return None if self._http is None else self._http.address

    async def startup(self, more: Sequence[Service] = ()) -> str:
        """Start the servers, gRPC with `more` services beside the front's, and the engine. Returns
        the HOST:PORT of gRPC."""
        self._server = await start_server(
            self._config.bind,
            [*self._services, *more],
            self._config.access,
        )
        try:
            await self._start_http()
        except (BindError, TlsError):
            await self._server.drain(0)
            raise
        await asyncio.to_thread(self._thread.start)
        return self._server.address

    async def _start_http(self) -> None:
        if self._config.http_bind:
            self._http = await start_http_server(
                self._config.http_bind,
                self._routes,
                lambda: self.engine.lost,
                self._config.access,
                last_writes_seconds=_LAST_WRITES_SECONDS,
            )

    async def shutdown(self) -> None:
        """refuse_and_drain(), then stop()."""
        await self.refuse_and_drain()
        await self.stop()

    async def refuse_and_drain(self) -> None:
        """Say NOT_SERVING, let requests in flight end within drain_timeout."""
        if self._server is None:
            return
        await self._server.refuse_traffic()
        if self._http is not None:
            self._http.refuse_traffic()
        try:
            await asyncio.wait_for(self.engine.drain(), self._config.drain_timeout)
        except TimeoutError:
            log.warning("requests still in flight after %s s are cut", self._config.drain_timeout)

    async def stop(self) -> None:
        """End the servers, then the engine. What is still in flight is cut."""
        if self._http is not None:
            await self._http.drain()
        if self._server is not None:
            await self._server.drain(_LAST_WRITES_SECONDS)
        await asyncio.to_thread(self._thread.stop)
        await asyncio.to_thread(self.tracing.close)
