"""Prefill node: its server for callers, and its daemon.

The front runs over an engine's side, in one process or in two. The daemon computes prompts'
prefixes and hands them to decode nodes.
"""

import logging
from dataclasses import dataclass

from aiohttp import web

from tasuki.dashboard.observed import PictureFiles
from tasuki.engine.assembly.parts import EngineParts, asked_model
from tasuki.engine.config import EngineConfig, EngineConfigError, Role
from tasuki.engine.messages import Emit
from tasuki.model.config import ModelConfig
from tasuki.prefill_node.config import PrefillConfig
from tasuki.prefill_node.engine_side import PrefillSide
from tasuki.prefill_node.gateway_transfers import GatewayAnswers, GatewayTransfers
from tasuki.server.auth.limits import HeldBytes
from tasuki.server.config import ServerConfig
from tasuki.server.daemon.engine_host import EngineHost
from tasuki.server.daemon.engine_process import EngineProcess
from tasuki.server.daemon.node import Node, about_node
from tasuki.server.daemon.node_watch import NodeFiles, folders_of
from tasuki.server.daemon.pair_daemon import PairDaemon
from tasuki.server.daemon.running_engine import NearEngine, RunningEngine
from tasuki.server.engine_client import EngineClient
from tasuki.server.grpc.interceptors import unimplemented_routes
from tasuki.server.grpc.server import Service
from tasuki.server.grpc.services import admin_service
from tasuki.server.openai.weight_routes import WeightHandlers
from tasuki.server.role_change import RoleChange
from tasuki.server.smg.factory import GatewayServices, gateway_of
from tasuki.server.workers.links import NodeSockets
from tasuki.transfer.control.link_status import HandoverStatusSource
from tasuki.transfer.data_plane import DataPlane

log = logging.getLogger(__name__)


class PrefillNode:
    """Prefill node with front and engine in one process. Build it inside a running event loop. Call
    startup, wait as the daemon does, then call shutdown. REQUIRES: the data plane `plane` is over
    parts.arena. Raises BindError."""

    def __init__(
        self,
        engine_config: EngineConfig,
        server_config: ServerConfig,
        config: PrefillConfig,
        parts: EngineParts,
        plane: DataPlane,
        role_change: RoleChange | None = None,
    ) -> None:
        near = NearEngine()
        transfers = GatewayTransfers() if server_config.gateway else None
        self._side = PrefillSide(
            engine_config, server_config, config, parts, plane, near, gateway_transfers=transfers
        )
        engine = self._side.engine
        near.hold(engine)
        self._alone = bool(config.handover_bind)
        self.front = prefill_front(
            near,
            engine_config,
            server_config,
            config,
            parts.model_config,
            engine.max_request_tokens,
            engine.max_batch,
            self._side.status,
            role_change,
            self._side.deliver,
            None if transfers is None else GatewayAnswers(transfers, self._side.loop),
        )

    @property
    def handover_address(self) -> str | None:
        """Return HOST:PORT of the hand-over's own server; None if it uses the front's server."""
        return self._side.handover_address

    async def startup(self) -> str:
        """Start the node. Return HOST:PORT of the front's server. After an error, end the started
        parts and raise it."""
        side = self._side
        side.begin()
        try:
            if self._alone:
                await side.serve()
                address = await self.front.startup()
            else:
                address = await self.front.startup(side.services, side.loop)
            await side.register(side.handover_address or address)
        except BaseException:
            await side.give_up()
            raise
        return address

    async def shutdown(self) -> None:
        """Stop the node in order. Transfers in flight end within the drain timeout or are given
        up."""
        await self._side.retire()
        await self.front.refuse_and_drain()
        await self._side.end_handover()
        await self.front.stop()
        await self._side.stop()


@dataclass(frozen=True)
class PrefillFront:
    """Front (server for callers) of a prefill node: for operators, and for a gateway if one is
    served. Implements NodeFront."""

    config: ServerConfig
    role_change: RoleChange | None
    gateway: GatewayServices

    grammars = None

    def services(self, client: EngineClient) -> tuple[Service, ...]:
        admin = admin_service(client, self.config, store=None, role_change=self.role_change)
        return (admin, *self.gateway(client))

    def routes(self, client: EngineClient) -> list[web.RouteDef]:
        held = HeldBytes.for_messages(self.config.message_bytes)
        return [*WeightHandlers(client, held).routes(), *unimplemented_routes()]

    def chat_tokens(self) -> dict[str, int]:
        return {}

    def picture_files(self) -> PictureFiles:
        return PictureFiles()


def prefill_front(
    engine: RunningEngine,
    engine_config: EngineConfig,
    server_config: ServerConfig,
    config: PrefillConfig,
    model: ModelConfig,
    max_request_tokens: int,
    max_batch: int,
    status: HandoverStatusSource,
    role_change: RoleChange | None = None,
    handover: Emit | None = None,
    gateway_answers: GatewayAnswers | None = None,
) -> Node:
    """Return the front of a prefill node, for an engine in this process or in another.
    max_request_tokens, max_batch: limits of the engine. handover: takes the engine's messages about
    hand-overs. gateway_answers: answers to a gateway's calls; None: no gateway is served."""
    gateway = gateway_of(
        engine_config, server_config, model, max_request_tokens, max_batch, None, gateway_answers
    )
    about = about_node(config.name, "prefill", engine_config.model, server_config)
    return Node(
        engine,
        server_config,
        PrefillFront(server_config, role_change, gateway),
        about,
        handover,
        status,
        files=NodeFiles(folders=folders_of(engine_config)),
    )


class PrefillDaemon(PairDaemon[PrefillConfig]):
    """Daemon of a prefill node: it computes prompts' prefixes and hands them to decode nodes."""

    role = Role.PREFILL

    def engine_apart(self) -> bool:
        """Return True if the engine has its own process. It has none if decode nodes or a gateway
        use the front's port, because decode nodes are served in the engine's process. Raises
        EngineConfigError for several ranks then."""
        if not super().engine_apart():
            return False
        if self.config.handover_bind and not self.server_config.gateway:
            return True
        ranks = self.engine_config.tensor_parallel
        if ranks > 1:
            raise EngineConfigError(
                f"an engine of {ranks} ranks has a process of its own: give --handover-bind, and "
                "no --gateway"
            )
        if self.server_config.engine_process == "process":
            log.warning(
                "the engine stays on a thread: a process of its own needs --handover-bind, and no "
                "--gateway"
            )
        return False

    def node(self, parts: EngineParts, plane: DataPlane, role_change: RoleChange) -> PrefillNode:
        return PrefillNode(
            self.engine_config, self.server_config, self.config, parts, plane, role_change
        )

    def side(self, parts: EngineParts, plane: DataPlane, host: EngineHost) -> PrefillSide:
        return PrefillSide(self.engine_config, self.server_config, self.config, parts, plane, host)

    async def front(
        self, engine: EngineProcess, sockets: NodeSockets | None, role_change: RoleChange
    ) -> Node:
        sizes = await engine.stands()
        return prefill_front(
            engine,
            self.engine_config,
            self.server_config,
            self.config,
            asked_model(self.engine_config),
            sizes.max_request_tokens,
            sizes.max_batch,
            engine.status,
            role_change,
        )
