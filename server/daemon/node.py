"""What every daemon shares: engine thread, its client, services, the gRPC and the HTTP server.

Does not know roles or hand-overs. Thread rule: one event loop's thread, but for post(), lose() and
progress(); the engine has its own, and the gRPC server may live on another loop. Life: startup,
then whatever the daemon waits for, then shutdown, once each.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from aiohttp import web
from tasuki.dashboard.history.tree_view import tree_view
from tasuki.dashboard.metrics.exposition import Exposition
from tasuki.dashboard.observed import ObservedMessage
from tasuki.dashboard.page_files import load_page
from tasuki.engine.engine import Engine
from tasuki.engine.messages import (
    Evicted,
    HandoverCancelled,
    HandoverLost,
    Inbox,
    Outbox,
    PeersChanged,
    PullCommitted,
    PullFenced,
    PullLost,
    RoomEnded,
    WriterFenced,
)
from tasuki.engine.thread import EngineThread
from tasuki.server.bind import BindError
from tasuki.server.config import FrontConfig
from tasuki.server.engine_client import EngineClient
from tasuki.server.errors import UnknownNode
from tasuki.server.grpc.cache_messages import read_node_name
from tasuki.server.grpc.loop_bridge import Bridge
from tasuki.server.grpc.server import Server, Service, start_server
from tasuki.server.http.dashboard import DashboardHandlers, DashboardSource
from tasuki.server.http.metrics import MetricsHandler, node_report
from tasuki.server.http.server import HttpServer, start_http_server
from tasuki.server.tracing.tracing import NoTracing, Tracing
from tasuki.transfer.liveness.link_status import HandoverStatus, HandoverStatusSource
from tasuki.transfer.liveness.node_progress import NodeProgress
from tasuki.utils.loops.loop_pulse import LoopPulse
from tasuki.utils.loops.loop_thread import LoopThread
from tasuki.utils.tls import TlsError
from tasuki.utils.version import package_version

from .node_recorder import NodeRecorder, log_ended

log = logging.getLogger(__name__)

# What answers already made may take to reach their clients once the engine is empty.
_LAST_WRITES_SECONDS = 1.0
_START_SECONDS = 30.0
_TOLD_TO_THE_ENGINE = (
    HandoverLost,
    WriterFenced,
    PeersChanged,
    PullCommitted,
    PullLost,
    PullFenced,
)
_FUSED = {"node": "serve", "role": "fused"}
# As many as a page can draw, each second, within a frame.
_TREE_NODES = 256


def no_routes(engine: EngineClient) -> Sequence[web.RouteDef]:
    """HTTP answers probes and metrics only."""
    return ()


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
        about: Mapping[str, str] = _FUSED,
        tracing: Tracing | None = None,
    ) -> None:
        """services, routes: what this role serves over its engine by gRPC and by HTTP. handover:
        takes the engine's hand-over messages, on the engine's thread. status: of the hand-overs
        behind this node. about: what its page says of it, `node` (its name) and `role`. tracing:
        closed with the node."""
        self._config = config
        self._loop = asyncio.get_running_loop()
        exposition = Exposition(config.metrics_compat)
        self._exposition = exposition
        self._recorder = NodeRecorder(time.time)
        self._sampling: asyncio.Task[None] | None = None
        self._keeps = config.metrics == "on"
        self.tracing = tracing or NoTracing()
        self._thread = EngineThread(engine, self._deliver, self.lose)
        self.engine = EngineClient(
            self._thread.post,
            self._loop,
            handover,
            observe=self._observe,
            limits=config.limits,
            begin=self.tracing.begin,
            requests=config.requests,
            watchers=config.watchers,
        )
        self._pulse = LoopPulse(self._loop)
        self._services = services(self.engine)
        metrics = MetricsHandler(self.engine, exposition, status)
        self._report = partial(node_report, self.engine, status)
        source = DashboardSource(
            self._recorder.history,
            self._recorder.now,
            self._tree,
            {**about, "version": package_version()},
            self._recorder.recording_blocks,
        )
        dashboard = DashboardHandlers(source, load_page(), self.engine.watchers)
        self._routes = [
            web.get("/metrics", metrics.handle),
            *dashboard.routes(),
            *routes(self.engine),
        ]
        self._server: Server | None = None
        self._http: HttpServer | None = None

    def lose(self, reason: str) -> None:
        """This node cannot go on: everything in flight ends and what comes is refused. From any
        thread."""
        self._loop.call_soon_threadsafe(self.engine.engine_lost, reason)

    def progress(self) -> NodeProgress:
        """How far engine and front are behind. From one thread that is neither's."""
        return NodeProgress(self._thread.still_seconds, self._pulse.behind())

    def post(self, message: Inbox) -> None:
        """To the engine, from any thread."""
        if isinstance(message, _TOLD_TO_THE_ENGINE):
            self._loop.call_soon_threadsafe(self._observe, message)
        self._thread.post(message)

    def _observe(self, message: ObservedMessage) -> None:
        if self._keeps:
            self._exposition.observe(message)
            self._recorder.observe(message)
        self.tracing.observe(message)
        log_ended(message)

    async def _tree(self, under: str | None) -> list[dict[str, Any]]:
        """Raises InvalidField, UnknownNode."""
        name = None if under is None else read_node_name(under)
        view = await self.engine.tree(_TREE_NODES, name)
        if view is None:
            raise UnknownNode("the tree holds that node no more: look from the top")
        return tree_view(view)

    def _deliver(self, message: Outbox) -> None:
        """On the engine's thread. What is only for the record goes no further."""
        if isinstance(message, Evicted | RoomEnded | HandoverCancelled):
            self._loop.call_soon_threadsafe(self._observe, message)
        if isinstance(message, Evicted):
            self._loop.call_soon_threadsafe(self.engine.ended.evicted, message)
        if not isinstance(message, Evicted | RoomEnded):
            self.engine.deliver(message)

    @property
    def http_address(self) -> str | None:
        """HOST:PORT of the HTTP server; None where there is none."""
        return None if self._http is None else self._http.address

    async def startup(self, guests: Sequence[Service] = (), host: LoopThread | None = None) -> str:
        """Start the servers, gRPC with the `guests` beside the front's services, and the engine.
        host: where the server lives and guests run; the front's services run here all the same.
        Returns the HOST:PORT of gRPC."""
        if host is None:
            self._server = await self._serve(guests, None)
        else:
            bridge = Bridge(self._loop, [guest.name for guest in guests])
            self._server = await host.run(self._serve(guests, bridge), _START_SECONDS)
        try:
            await self._start_http()
        except (BindError, TlsError):
            await self._server.drain(0)
            raise
        await asyncio.to_thread(self._thread.start)
        if self._keeps:
            self._sampling = self._loop.create_task(self._recorder.sample(self._report))
        return self._server.address

    async def _serve(self, guests: Sequence[Service], bridge: Bridge | None) -> Server:
        services = [*self._services, *guests]
        return await start_server(self._config.bind, services, self._config.access, bridge)

    async def _start_http(self) -> None:
        if self._config.http_bind:
            self._http = await start_http_server(
                self._config.http_bind,
                self._routes,
                lambda: self.engine.lost,
                self._config.access,
                admit=self.engine.admit,
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
            await asyncio.wait_for(self.engine.retire(), self._config.drain_timeout)
        except TimeoutError:
            log.warning("requests still in flight after %s s are cut", self._config.drain_timeout)

    async def stop(self) -> None:
        """End the servers, then the engine. What is still in flight is cut."""
        if self._sampling is not None:
            self._sampling.cancel()
        if self._http is not None:
            await self._http.drain()
        if self._server is not None:
            await self._server.drain(_LAST_WRITES_SECONDS)
        await asyncio.to_thread(self._thread.stop)
        await asyncio.to_thread(self.tracing.close)
