"""Decode node: the client services over an engine's side, in one process or in two, and the daemon
to receive prefixes and write answers."""

from contextlib import AbstractContextManager

from tasuki.decode_node.config import DecodeConfig, HandoverSettings
from tasuki.decode_node.engine_side import DecodeSide
from tasuki.engine.assembly.parts import EngineParts, asked_model
from tasuki.engine.config import EngineConfig, Role
from tasuki.engine.messages import Emit
from tasuki.server.config import ServerConfig
from tasuki.server.daemon.client_front import ClientFront, node_codec, with_trials
from tasuki.server.daemon.engine_host import EngineHost
from tasuki.server.daemon.engine_process import EngineProcess
from tasuki.server.daemon.node import Node, about_node
from tasuki.server.daemon.node_watch import NodeFiles, folders_of
from tasuki.server.daemon.pair_daemon import PairDaemon
from tasuki.server.daemon.running_engine import NearEngine, RunningEngine
from tasuki.server.pictures.node_pictures import NodePictures
from tasuki.server.role_change import RoleChange
from tasuki.server.text.text_codec import TextCodec
from tasuki.server.workers.links import NodeSockets, node_sockets
from tasuki.server.workers.pool import NodeWorkers
from tasuki.transfer.control.link_status import HandoverStatusSource
from tasuki.transfer.data_plane import DataPlane


class DecodeNode:
    """Decode node with front and engine in one process. Build it inside a running event loop. Call
    startup, wait as the daemon does, then call shutdown. REQUIRES: the data plane `plane` is over
    parts.arena. Raises TlsError, MembershipError."""

    handover_address = None

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
        sight = parts.sight
        if sight is not None:
            server_config = server_config.seeing()
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
            pictures=None if sight is None else NodePictures.of_folder(engine_config.model),
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
        """Start the node. Return HOST:PORT of the server for clients."""
        await self._side.start()
        try:
            return await self.front.startup()
        except BaseException:
            await self._side.give_up()
            raise

    async def shutdown(self) -> None:
        """Stop the node in order. Requests in flight end within the drain timeout or are cut."""
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
    """Return the front (server for clients) of a decode node, for an engine in this process or in
    another. handover: takes the engine's messages about hand-overs. workers: front workers
    answering clients in place of this process."""
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


class DecodeDaemon(PairDaemon[DecodeConfig]):
    """Daemon of a decode node: it receives prefixes, writes answers, and serves a pair's
    clients."""

    role = Role.DECODE

    def sockets(self) -> AbstractContextManager[NodeSockets | None]:
        return node_sockets(self.server_config)

    def node(self, parts: EngineParts, plane: DataPlane, role_change: RoleChange) -> DecodeNode:
        codec = node_codec(
            self.engine_config, self.server_config, parts.model_config, parts.grammars.trials
        )
        return DecodeNode(
            self.engine_config,
            self.server_config,
            self.config,
            parts,
            plane,
            codec,
            role_change=role_change,
        )

    def side(self, parts: EngineParts, plane: DataPlane, host: EngineHost) -> DecodeSide:
        return DecodeSide(self.engine_config, self.server_config, self.config, parts, plane, host)

    async def front(
        self, engine: EngineProcess, sockets: NodeSockets | None, role_change: RoleChange
    ) -> Node:
        engine_config, server_config = self.engine_config, self.server_config
        model = asked_model(engine_config)
        # Load this while the engine's process loads.
        codec = node_codec(engine_config, server_config, model)
        sizes = await engine.stands()
        front = ClientFront(
            engine_config,
            server_config,
            model,
            with_trials(codec, sizes.trials),
            sizes.max_request_tokens,
            sizes.max_batch,
            engine.status,
            role_change,
        )
        return decode_front(
            engine,
            engine_config,
            server_config,
            self.config,
            front,
            engine.status,
            workers=front.workers(engine, sockets),
        )
