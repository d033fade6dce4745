"""The part shared by every daemon: the engine's client, services, gRPC and HTTP servers.

Independent of roles, of hand-overs, and of the engine's process. Thread rule: one event loop's
thread, except for deliver() and lose(). The gRPC server may live on another loop. Life: startup,
main loop, shutdown, once each.
"""

import asyncio
import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

from aiohttp import web

from tasuki.dashboard.health import Standing
from tasuki.dashboard.history.views import tree_view
from tasuki.dashboard.metrics.exposition import Exposition
from tasuki.dashboard.observed import NodeReport, ObservedMessage, PictureFiles
from tasuki.dashboard.page_files import load_page
from tasuki.engine import messages as m
from tasuki.model.grammar.trials.client import DRAINS, GrammarTrials
from tasuki.server.bind import BindError
from tasuki.server.config import ServerConfig
from tasuki.server.discovery.registration import Registration, http_registration
from tasuki.server.engine_client import EngineClient
from tasuki.server.errors import RequestRejected, UnknownNode
from tasuki.server.grpc.cache_messages import read_node_name
from tasuki.server.grpc.server import Bridge, Server, Service, start_private_server, start_server
from tasuki.server.http.dashboard import DashboardHandlers, DashboardSource
from tasuki.server.http.server import (
    HttpServer,
    start_http_server,
    start_private_http_server,
)
from tasuki.server.traces import open_tracing
from tasuki.server.workers.pool import NodeWorkers
from tasuki.transfer.control.link_status import HandoverStatus, HandoverStatusSource
from tasuki.utils.loops import LoopThread
from tasuki.utils.program import package_version
from tasuki.utils.tls import TlsError

from .node_recorder import ActivityLog, NodeObserver, NodeRecorder, NodeRecords
from .node_watch import NodeFiles, NodeWatch, metrics_handler, node_report
from .running_engine import RunningEngine
from .shutdown import TimeForDrainTargets
from .startup import Served

log = logging.getLogger(__name__)

# The time for finished answers to reach their clients once the engine is empty.
_LAST_WRITES_SECONDS = 1.0
_START_SECONDS = 30.0
_OWN_CONNECTIONS = 1 << 16
# Number of nodes a page can draw within a frame, each second.
_TREE_NODES = 256


def about_node(name: str, role: str, folder: str, config: ServerConfig) -> dict[str, str]:
    """Return the heading of a node's page: its name, role and model. folder: the checkpoint's
    folder."""
    return {"node": name, "role": role, "model": config.model_names(Path(folder))[0]}


class NodeFront(Protocol):
    """The services and routes for a node's clients. They depend on the node's role, and use a
    client of its engine."""

    def services(self, client: EngineClient) -> Sequence[Service]:
        """Return the gRPC services for clients. client: client of the engine."""

    def routes(self, client: EngineClient) -> Sequence[web.RouteDef]:
        """Return the HTTP routes for clients. client: client of the engine."""

    def chat_tokens(self) -> Mapping[str, int]:
        """Return the token counts of rendered conversations, by source."""

    def picture_files(self) -> PictureFiles:
        """Return the server's counts of pictures: refused ones, and bytes held."""

    @property
    def grammars(self) -> GrammarTrials | None:
        """Return the trial runs of grammars awaited by this process's callers; None if it answers
        no caller."""


class Node:
    """The owner of a node's running engine and its servers. Build it inside a running event
    loop."""

    def __init__(
        self,
        engine: RunningEngine,
        config: ServerConfig,
        front: NodeFront,
        about: Mapping[str, str],
        handover: m.Emit | None = None,
        status: HandoverStatusSource = HandoverStatus,
        workers: NodeWorkers | None = None,
        files: NodeFiles | None = None,
    ) -> None:
        """Set up a node. about: the page's heading: `node` (its name), `role` and `model`.
        handover: takes the engine's hand-over messages, on the engine's thread. None if the role
        has no hand-over, or has it in the engine's process. status: source of the status of this
        node's hand-overs. workers: front workers, answering clients in place of this process. This
        process is then their registry. None: there are no workers. files: the node's files besides
        the server's. Raises TracingUnavailable."""
        self._config = config
        self._etcd_access = config.etcd_access
        if config.http_etcd:
            self._etcd_access.check(config.http_etcd)
        self.loop = asyncio.get_running_loop()
        exposition = Exposition(config.metrics_compat, about["model"])
        self._recorder = NodeRecorder(time.time)
        self._activity = ActivityLog()
        self._sampling: list[asyncio.Task[None]] = []
        self._keeps = config.metrics == "on"
        self.tracing = open_tracing(
            config.otlp_endpoint, about["node"], about["role"], about["model"]
        )
        kept = NodeRecords(exposition, self._recorder, self._activity) if self._keeps else None
        self._observer = NodeObserver(self.tracing, kept)
        self._running = engine
        self.engine = EngineClient(
            engine.post if workers is None else self._post_beside_workers,
            self.loop,
            handover,
            self._observer,
            config.caller_limits,
            drain_grace=config.drain_grace,
        )
        self.engine.rotation.watch(self._show_rotation)
        self._workers = workers
        self._front = front
        self._status = status
        self._services = front.services(self.engine)
        if workers is not None:
            self._registry = workers.registry(self.engine, self.tracing.header)
        about = {**about, "version": package_version(), "started_at": f"{time.time():.0f}"}
        self._about = about
        self._watch = NodeWatch(
            self._report,
            self._standing,
            self._failures,
            files or NodeFiles(),
            config.access.tls,
        )
        source = DashboardSource(
            self._recorder.history,
            self._recorder.now,
            self._tree,
            about,
            self._recorder.recording_blocks,
            self._standing,
        )
        dashboard = DashboardHandlers(source, load_page(), self.engine.watchers)
        self._routes = [
            web.get("/metrics", metrics_handler(self._watch, exposition)),
            *dashboard.routes(),
            *front.routes(self.engine),
        ]
        self._server: Server | None = None
        self._http: HttpServer | None = None
        self._http_address: str | None = None
        self._registration: Registration | None = None
        engine.attach(self)

    def deliver(self, messages: Sequence[m.Outbox]) -> None:
        """Pass on the messages of an engine's step to the front. Called on the engine's thread."""
        self.engine.deliver(messages)

    def take(self, messages: Sequence[Any]) -> None:
        """Handle the messages of an engine's step for the front."""
        self.engine.take(messages)

    def lose(self, reason: str) -> None:
        """End every request in flight with `reason` and refuse new ones: this node cannot go on.
        From any thread."""
        self.loop.call_soon_threadsafe(self._lose, reason)

    def _lose(self, reason: str) -> None:
        self.engine.engine_lost(reason)
        if self._workers is not None:
            self._workers.pool.engine_lost(reason)

    def _post_beside_workers(self, message: m.Inbox) -> None:
        self._running.post(message)
        if isinstance(message, m.Abort):
            self._registry.abort_asked(message.request_id)

    def observe(self, message: ObservedMessage) -> None:
        """Pass the engine's message to the NodeObserver."""
        self._observer.observe(message)

    def count_tokens(self, count: int) -> None:
        """Pass the number of tokens to the NodeObserver."""
        self._observer.count_tokens(count)

    async def _report(self) -> NodeReport:
        """Return the present counters of the node. Raises ServerError if the engine has died."""
        stats = await self.engine.counters()
        chat_tokens = self._front.chat_tokens()
        if self._workers is not None:
            chat_tokens = self._registry.chat_tokens(chat_tokens)
        files = self._front.picture_files()
        if self._workers is not None:
            files = replace(files, counts=self._registry.picture_counts(files.counts))
        return node_report(stats, self._status(), chat_tokens, self._about, files)

    def _failures(self) -> Mapping[str, int]:
        own = self.engine.calls.failures
        return own if self._workers is None else self._registry.failures(own)

    def _standing(self) -> Standing:
        return Standing(self.engine.lost, self.engine.rotation.left)

    async def _tree(self, under: str | None) -> list[dict[str, Any]]:
        """Return the rows of the cached radix tree under a node; None: under its root. Raises
        InvalidField, UnknownNode."""
        name = None if under is None else read_node_name(under)
        view = await self.engine.tree(_TREE_NODES, name)
        if view is None:
            raise UnknownNode("the tree holds that node no more: look from the top")
        return tree_view(view)

    @property
    def http_address(self) -> str | None:
        """Return HOST:PORT of the node's HTTP server; None if it has none."""
        return self._http_address

    async def startup(self, guests: Sequence[Service] = (), host: LoopThread | None = None) -> str:
        """Start the servers and the engine. gRPC also serves the `guests`, services besides the
        front's. host: the event loop of the server and the guests; the front's services still run
        on this loop. A node with front workers ignores both. Return the HOST:PORT of gRPC."""
        if self._workers is not None:
            address = await self._start_workers(self._workers)
            await self._begin(address)
            return address
        if host is None:
            self._server = await self._serve(guests, None)
        else:
            bridge = Bridge(self.loop, [guest.name for guest in guests], self.engine.calls.failed)
            self._server = await host.run(self._serve(guests, bridge), _START_SECONDS)
        try:
            await self._start_http()
        except (BindError, TlsError):
            await self._server.drain(0)
            raise
        await self._begin(self._server.address)
        return self._server.address

    async def _begin(self, address: str) -> None:
        """Start the engine, the registration in etcd and the sampling of counters, and announce the
        node. address: HOST:PORT of the gRPC server."""
        self.engine.http_address = self._http_address or ""
        await self._running.start()
        if self._config.http_etcd and self._http_address is not None:
            reached_at = self._config.http_advertise or self._http_address
            self._registration = http_registration(
                self._etcd_access, self._config.http_etcd, reached_at
            )
            self._registration.start()
        if self._keeps:
            for watch in (self._recorder.sample, self._activity.run):
                self._sampling.append(self.loop.create_task(watch(self._report)))
        access = self._config.access
        served = Served(
            self._about, address, self._http_address, access.tls is not None, bool(access.keys)
        )
        served.announce()

    async def _start_workers(self, workers: NodeWorkers) -> str:
        """Start this process's servers, reached by front workers only. Then start the workers with
        the clients' servers. Return the clients' HOST:PORT of gRPC."""
        config, sockets = self._config, workers.sockets
        # The workers have already limited their clients' connections.
        access = replace(config.access, max_connections=_OWN_CONNECTIONS)
        self._server = await start_private_server(
            sockets.grpc, self._services, access, self.engine.calls
        )
        if config.http_bind:
            self._http = await start_private_http_server(
                sockets.http,
                config.http_bind,
                self._routes,
                lambda: self.engine.lost,
                access,
                self.engine.calls,
            )
        workers.gone_from_engine(self._registry.gone_from_engine)
        try:
            address, self._http_address = await workers.pool.start(self._registry)
        except BaseException:
            if self._http is not None:
                await self._http.drain()
            await self._server.drain(0)
            raise
        return address

    async def _serve(self, guests: Sequence[Service], bridge: Bridge | None) -> Server:
        services = [*self._services, *guests]
        bind, access = self._config.bind, self._config.access
        calls, rotation = self.engine.calls, self.engine.rotation
        return await start_server(bind, services, access, bridge, calls=calls, rotation=rotation)

    async def _start_http(self) -> None:
        if self._config.http_bind:
            self._http = await start_http_server(
                self._config.http_bind,
                self._routes,
                lambda: self.engine.lost,
                self._config.access,
                admitted=self.engine.admitted,
                calls=self.engine.calls,
                last_writes_seconds=_LAST_WRITES_SECONDS,
                rotation=self.engine.rotation,
                grpc="" if self._server is None else self._server.address,
            )
            self._http_address = self._http.address

    async def shutdown(self) -> None:
        """Run refuse_and_drain(), then stop()."""
        await self.refuse_and_drain()
        await self.stop()

    def _show_rotation(self) -> None:
        if self._workers is None:
            return
        if self.engine.rotation.left:
            self._workers.pool.leave_rotation()
        else:
            self._workers.pool.come_back()

    async def refuse_and_drain(self) -> None:
        """Report NOT_SERVING, but still take requests for drain_grace seconds. Then let requests in
        flight end within drain_timeout seconds. Meanwhile, and for a part of drain_timeout
        afterwards, hand cached states over to prefill nodes. Does nothing without a server, and
        ends early if the engine has died."""
        if self._server is None:
            return
        await self._server.refuse_traffic()
        await self.engine.leave()
        if self._workers is not None:
            self._workers.pool.refuse_traffic()
        if self._front.grammars is not None:
            self._front.grammars.close(DRAINS)
        if self.engine.lost is not None:
            return
        drain_targets = TimeForDrainTargets(self.engine, self._config.drain_timeout)
        try:
            await asyncio.wait_for(self._empty(), self._config.drain_timeout)
        except TimeoutError:
            log.warning("requests still in flight after %s s are cut", self._config.drain_timeout)
        except RequestRejected as error:
            log.warning("the engine was lost while requests ended: %s", error)
        await drain_targets.end()

    async def _empty(self) -> None:
        """Wait until no request is in flight and clients have all their computed output."""
        await self.engine.retire()
        if self._workers is not None:
            await self._workers.pool.calls_over()

    async def stop(self) -> None:
        """End the servers, then the engine. Requests still in flight are cut."""
        for task in self._sampling:
            task.cancel()
        self._watch.close()
        if self._registration is not None:
            await self._registration.stop()
        if self._workers is not None:
            await self._workers.pool.stop()
        if self._http is not None:
            await self._http.drain()
        if self._server is not None:
            await self._server.drain(_LAST_WRITES_SECONDS)
        await self._running.stop()
        await asyncio.to_thread(self.tracing.close)
