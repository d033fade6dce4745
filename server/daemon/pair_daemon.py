"""The life of a daemon of a prefill/decode pair, of either role: startup, main loop, drain.

The engine is on a thread of the process, or in a separate process.
"""

import asyncio
import socket
from abc import ABC, abstractmethod
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Generic, Protocol, TypeVar

from tasuki.engine.assembly.parts import BuildParts, EngineParts, pair_parts
from tasuki.engine.config import EngineConfig, Role
from tasuki.server.config import ServerConfig
from tasuki.server.role_change import NextRole, RoleChange, become
from tasuki.server.workers.links import NodeSockets
from tasuki.transfer.data_plane import DataPlane, TransferEngine
from tasuki.transfer.settings import WireSettings
from tasuki.utils.logs import configure_logging
from tasuki.utils.loops import LoopThread
from tasuki.utils.signatures import EndNotice

from .engine_host import EngineHost, host_engine
from .engine_process import EngineProcess, serve_apart
from .node import Node
from .running_engine import EngineSide
from .shutdown import StopRequest
from .startup import announce_ready, spare_collections


class PairConfig(Protocol):
    """The settings common to both roles' configs. name: the node's name, shown to peers."""

    @property
    def name(self) -> str: ...
    @property
    def transport(self) -> str: ...
    @property
    def wire(self) -> WireSettings: ...


START_SECONDS = 30.0
"""Timeout in seconds to reach the prefill nodes for the first time, or to start a server. The
answer of etcd comes before and is not included."""
STOP_SECONDS = 45.0
"""Timeout in seconds to end transfers, prefix loads and links, each within its own timeout."""
LOOP_SECONDS = 10.0


class PairSide:
    """The hand-over's part of the engine's process: the sending and the receiving end of transfers,
    and the hand-over's event loop. Transfers live on this loop, so no work for callers delays a
    heartbeat."""

    def __init__(self, ends: TransferEngine, lose: EndNotice) -> None:
        """Set up the side, with its event loop not started. ends: sending and receiving end of
        transfers. lose: called with a reason if the event loop dies."""
        self._ends = ends
        self.loop = LoopThread("tasuki-handover", lose)

    async def give_up(self) -> None:
        """End the hand-over's event loop after a failed start of the node."""
        await asyncio.to_thread(self.loop.stop, LOOP_SECONDS)

    async def stop(self) -> None:
        """End the sending and receiving of transfers, then the event loop. REQUIRES: the engine has
        ended."""
        await asyncio.to_thread(self._ends.stop)
        # Last, because engine and sender post to it until they end.
        await asyncio.to_thread(self.loop.stop, LOOP_SECONDS)


class PairNode(Protocol):
    """A node with its API servers and its engine in one process. handover_address: HOST:PORT of a
    separate server for decode nodes."""

    front: Node

    @property
    def handover_address(self) -> str | None: ...
    async def startup(self) -> str:
        """Start the node. Return the HOST:PORT of gRPC for clients."""

    async def shutdown(self) -> None:
        """Let requests in flight end within the drain timeout, or cut them. Then stop the other
        parts in order."""


Config = TypeVar("Config", bound=PairConfig)


@dataclass(frozen=True)
class PairDaemon(ABC, Generic[Config]):
    """A daemon of one role. build: loads the model. The daemon can be pickled, because the engine's
    process is started with it."""

    role: ClassVar[Role]
    engine_config: EngineConfig
    server_config: ServerConfig
    config: Config
    build: BuildParts

    @abstractmethod
    def node(self, parts: EngineParts, plane: DataPlane, role_change: RoleChange) -> PairNode:
        """Return the node with everything in one process."""

    @abstractmethod
    def side(self, parts: EngineParts, plane: DataPlane, host: EngineHost) -> EngineSide:
        """Return the engine side of the node, in its engine's process."""

    @abstractmethod
    async def front(
        self, engine: EngineProcess, sockets: NodeSockets | None, role_change: RoleChange
    ) -> Node:
        """Return the front of the node over a started engine. sockets: Unix sockets of a node with
        front workers; None: it has none."""

    def engine_apart(self) -> bool:
        """Return True if the engine runs in a process of its own, False if on a thread. Raises
        EngineConfigError."""
        engine = self.engine_config
        return self.server_config.engine_apart(engine.device, engine.tensor_parallel)

    def sockets(self) -> AbstractContextManager[NodeSockets | None]:
        """Yield the Unix sockets of front workers for the life of the node; None if there are no
        front workers."""
        return nullcontext()

    def run(self) -> None:
        """Run the node until it has drained. If its role changes, this call never returns: the
        process is replaced. Raises EngineConfigError and the typed errors of the build."""
        running = self.run_apart if self.engine_apart() else self.run_near
        wanted = asyncio.run(running())
        if wanted is not None:
            become(wanted)

    async def run_near(self) -> NextRole | None:
        """Run startup, main loop and drain, with the engine on a thread. Return the node's next
        role if it was asked to change, else None."""
        role_change = self._role_change()
        with self._parts() as (parts, plane):
            node = self.node(parts, plane, role_change)
            async with StopRequest(
                exit_with_parent=self.server_config.exit_with_parent,
                rotation=node.front.engine.rotation,
            ) as stop:
                address = await node.startup()
                role_change.offer(address, node.front.http_address, stop.ask)
                spare_collections()
                announce_ready(address, node.front.http_address, node.handover_address)
                await stop.wait()
                await node.shutdown()
        return role_change.wanted

    async def run_apart(self) -> NextRole | None:
        """Run startup, main loop and drain, with the engine in a process of its own, and with front
        workers if configured. Return the node's next role if it was asked to change, else None."""
        role_change = self._role_change()
        with self.sockets() as sockets:
            door = None if sockets is None else sockets.engine
            engine = await EngineProcess.launch(partial(self.run_engine, door))
            node = await self.front(engine, sockets, role_change)
            await serve_apart(engine, node, self.server_config, role_change)
        return role_change.wanted

    def run_engine(self, door: str | None, connection: socket.socket) -> int:
        """Run the engine's process and return its exit status. door: path of the Unix socket for
        front workers; None if there are none. connection: socket to the front."""
        configure_logging(self.server_config.log_format, self.server_config.log_level)
        with ExitStack() as stack:

            def side(host: EngineHost) -> EngineSide:
                parts, plane = stack.enter_context(self._parts())
                if parts.ranks is not None:
                    parts.ranks.on_loss(host.end)
                return self.side(parts, plane, host)

            return host_engine(connection, side, door)

    def _role_change(self) -> RoleChange:
        return RoleChange(self.role.value, (self.engine_config, self.server_config, self.config))

    def _parts(self) -> AbstractContextManager[tuple[EngineParts, DataPlane]]:
        config = self.config
        return pair_parts(
            self.engine_config,
            self.build,
            self.role,
            transport=config.transport,
            name=config.name,
            wire=config.wire,
        )
