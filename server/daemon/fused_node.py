"""The life of a node with both prefill and decode: startup, main loop, drain."""

import asyncio
import logging
import socket
from functools import partial

from tasuki.engine import messages as m
from tasuki.engine.assembly.engines import build_cache, build_fused_engine
from tasuki.engine.assembly.parts import BuildParts, asked_model
from tasuki.engine.config import EngineConfig, Role
from tasuki.server.config import ServerConfig
from tasuki.server.pictures.node_pictures import NodePictures, pictures_apart
from tasuki.server.workers.links import NodeSockets, node_sockets
from tasuki.server.workers.pool import NodeWorkers
from tasuki.transfer.control.link_status import HandoverStatus
from tasuki.utils.logs import configure_logging, progress_bar
from tasuki.utils.signatures import EndNotice

from .client_front import ClientFront, node_codec, with_trials
from .engine_host import EngineHost, host_engine
from .engine_process import EngineProcess
from .engine_process import serve_apart as live_apart
from .node import Node, about_node
from .node_watch import NodeFiles, folders_of
from .running_engine import NearEngine, RunningEngine
from .shutdown import StopRequest
from .startup import announce_ready, spare_collections

log = logging.getLogger(__name__)


def run(
    engine_config: EngineConfig, server_config: ServerConfig, build: BuildParts, name: str
) -> None:
    """Run the node until it has drained. build: loads the model. name: the node's name, shown on
    pages. Raises EngineConfigError and the typed errors of the build."""
    apart = server_config.engine_apart(engine_config.device, engine_config.tensor_parallel)
    serving = serve_apart if apart else serve
    asyncio.run(serving(engine_config, server_config, build, name))


async def serve(
    engine_config: EngineConfig, server_config: ServerConfig, build: BuildParts, name: str
) -> None:
    """Run the node's startup, main loop and drain, with the engine on a thread. build: loads the
    model. name: the node's name, shown on pages."""
    side = FusedSide(engine_config, build)
    if side.pictures is not None:
        server_config = _seeing(server_config)
    codec = node_codec(engine_config, server_config, side.model, side.grammars)
    engine = side.engine
    front = ClientFront(
        engine_config,
        server_config,
        side.model,
        codec,
        engine.max_request_tokens,
        engine.max_batch,
        pictures=side.pictures,
    )
    node = _front(NearEngine(engine), engine_config, server_config, front, name)
    async with StopRequest(
        exit_with_parent=server_config.exit_with_parent, rotation=node.engine.rotation
    ) as stop:
        address = await node.startup()
        spare_collections()
        announce_ready(address, node.http_address)
        await stop.wait()
        await node.shutdown()


async def serve_apart(
    engine_config: EngineConfig, server_config: ServerConfig, build: BuildParts, name: str
) -> None:
    """Run the node's startup, main loop and drain, with the engine in a process of its own, and
    with front workers if configured. build: loads the model. name: the node's name."""
    with node_sockets(server_config) as sockets:
        engine = await EngineProcess.launch(
            partial(run_engine, engine_config, server_config, build, sockets)
        )
        model = asked_model(engine_config)
        codec = node_codec(engine_config, server_config, model)
        sizes = await engine.stands()
        codec = with_trials(codec, sizes.trials)
        pictures = pictures_apart(engine_config.model) if sizes.sees_pictures else None
        if pictures is not None:
            server_config = _seeing(server_config)
        front = ClientFront(
            engine_config,
            server_config,
            model,
            codec,
            sizes.max_request_tokens,
            sizes.max_batch,
            pictures=pictures,
        )
        workers = front.workers(engine, sockets)
        node = _front(engine, engine_config, server_config, front, name, workers)
        await live_apart(engine, node, server_config)


def _seeing(config: ServerConfig) -> ServerConfig:
    """Return the settings of a node that sees pictures, and log their bound."""
    seeing = config.seeing()
    log.info("this node sees pictures: messages of up to %d MiB", seeing.max_message_mib)
    return seeing


def run_engine(
    engine_config: EngineConfig,
    server_config: ServerConfig,
    build: BuildParts,
    sockets: NodeSockets | None,
    connection: socket.socket,
) -> int:
    """Run the engine's process and return its exit status. sockets: Unix sockets of a node with
    front workers; None: the node has none. connection: socket to the front."""
    configure_logging(server_config.log_format, server_config.log_level)

    def side(front: EngineHost) -> FusedSide:
        return FusedSide(engine_config, build, front.end)

    return host_engine(connection, side, None if sockets is None else sockets.engine)


class FusedSide:
    """The EngineSide of a node without a hand-over: it has an engine, and no hand-over to start or
    end."""

    handover_address = None

    def __init__(
        self,
        config: EngineConfig,
        build: BuildParts,
        end: EndNotice | None = None,
    ) -> None:
        """Load the model and build the engine. end: ends this process, with a reason. REQUIRES:
        `end` is given if the model runs on several ranks."""
        parts = build(config, progress_bar("weights"), Role.FUSED)
        self._ranks = parts.ranks
        if self._ranks is not None:
            assert end is not None, "ranks outlive no engine on a thread"
            self._ranks.on_loss(end)
        self.model = parts.model_config
        self.grammars = parts.grammars.trials
        self.pictures = None if parts.tower is None else NodePictures.of_folder(config.model)
        self.engine = build_fused_engine(
            config, parts, build_cache(config, parts), progress_bar("decode graphs")
        )

    def deliver(self, message: m.Outbox) -> None:
        raise TypeError(f"{type(message).__name__} came from an engine that hands nothing over")

    def status(self) -> HandoverStatus:
        return HandoverStatus()

    async def start(self) -> None:
        return

    async def retire(self) -> None:
        return

    async def end_handover(self) -> None:
        return

    async def stop(self) -> None:
        if self._ranks is not None:
            await asyncio.to_thread(self._ranks.close)


def _front(
    engine: RunningEngine,
    engine_config: EngineConfig,
    server_config: ServerConfig,
    front: ClientFront,
    name: str,
    workers: NodeWorkers | None = None,
) -> Node:
    about = about_node(name, "fused", front.folder, server_config)
    return Node(
        engine,
        server_config,
        front,
        about,
        workers=workers,
        files=NodeFiles(folders=folders_of(engine_config)),
    )
