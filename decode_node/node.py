"""A decode node: the front door's services over an engine's side, in one process or in two.

Life: startup, then whatever the daemon waits for, then shutdown.
"""

from tasuki.decode_node.config import DecodeConfig, HandoverSettings
from tasuki.decode_node.engine_side import DecodeSide
from tasuki.engine.assembly.parts import EngineParts
from tasuki.engine.config import EngineConfig
from tasuki.engine.messages import Emit
from tasuki.server.config import ServerConfig
from tasuki.server.daemon.client_front import ClientFront
from tasuki.server.daemon.node import Node, about_node
from tasuki.server.daemon.node_watch import NodeFiles, folders_of
from tasuki.server.daemon.running_engine import NearEngine, RunningEngine
from tasuki.server.role_change import RoleChange
from tasuki.server.text.text_codec import TextCodec
from tasuki.server.workers.pool import NodeWorkers
from tasuki.transfer.data_plane import DataPlane
from tasuki.transfer.liveness.link_status import HandoverStatusSource


class DecodeNode:
    """Front and engine in one process. Build it inside a running event loop. REQUIRES: `plane` is
    over parts.arena. Raises TlsError, MembershipError."""

    def __init__(
        self,
        engine_config: EngineConfig,
        server_config: ServerConfig,
        config: DecodeConfig,
        parts: EngineParts,
        plane: DataPlane,
        codec: TextCodec,
        settings: HandoverSettings | None = None,
        role_change: RoleChange | None = None,
    ) -> None:
        self.near = NearEngine()
        self._side = DecodeSide(
            engine_config, server_config, config, parts, plane, self.near, settings
        )
        engine = self._side.engine
        self.near.hold(engine)
        self.links = self._side.links
        status = self._side.status
        front = ClientFront(
            engine_config,
            server_config,
            parts.model_config,
            codec,
            engine.max_request_tokens,
            engine.max_batch,
            status,
            role_change,
        )
        self.front = decode_front(
            self.near,
            engine_config,
            server_config,
            config,
            front,
            status,
            self._side.deliver,
        )

    async def startup(self) -> str:
        """Returns HOST:PORT."""
        await self._side.start()
        try:
            return await self.front.startup()
        except BaseException:
            await self._side.give_up()
            raise

    async def shutdown(self) -> None:
        """Requests in flight end within the drain timeout or are cut; the rest stops in order."""
        await self.front.refuse_and_drain()
        await self._side.end_handover()
        await self.front.stop()
        await self._side.stop()


def decode_front(
    engine: RunningEngine,
    engine_config: EngineConfig,
    server_config: ServerConfig,
    config: DecodeConfig,
    front: ClientFront,
    status: HandoverStatusSource,
    handover: Emit | None = None,
    workers: NodeWorkers | None = None,
) -> Node:
    """The front of a decode node, wherever its engine runs. handover, workers: as Node's."""
    authorities = {"prefill_ca": config.prefill_ca} if config.prefill_ca else {}
    about = about_node(config.name, "decode", front.folder, server_config)
    return Node(
        engine,
        server_config,
        front,
        about,
        handover,
        status,
        workers,
        files=NodeFiles(authorities, folders_of(engine_config)),
    )
