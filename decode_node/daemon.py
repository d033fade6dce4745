"""The life of the daemon that takes prefixes over and writes answers: startup, main loop, drain."""

import asyncio
import socket
from contextlib import AbstractContextManager, ExitStack
from functools import partial

from tasuki.decode_node.config import DecodeConfig
from tasuki.decode_node.engine_side import DecodeSide
from tasuki.decode_node.node import DecodeNode, decode_front
from tasuki.engine.assembly.parts import BuildParts, EngineParts, asked_model, pair_parts
from tasuki.engine.config import EngineConfig, Role
from tasuki.server.config import ServerConfig
from tasuki.server.daemon.client_front import ClientFront, node_codec, with_trials
from tasuki.server.daemon.engine_host import EngineHost, host_engine
from tasuki.server.daemon.engine_process import EngineProcess, serve_apart
from tasuki.server.daemon.shutdown import StopRequest
from tasuki.server.daemon.startup import announce_ready, spare_collections
from tasuki.server.role_change import NextRole, RoleChange, become
from tasuki.server.workers.links import NodeSockets, node_sockets
from tasuki.transfer.data_plane import DataPlane
from tasuki.utils.logs import configure_logging


def run_daemon(
    engine_config: EngineConfig,
    server_config: ServerConfig,
    config: DecodeConfig,
    build: BuildParts,
) -> None:
    """Blocks until the node has drained; where its role changes it does not return. Raises
    EngineConfigError and the typed errors of what is built."""
    apart = server_config.engine_apart(engine_config.device, engine_config.tensor_parallel)
    running = run_apart if apart else run
    wanted = asyncio.run(running(engine_config, server_config, config, build))
    if wanted is not None:
        become(wanted)


async def run(
    engine_config: EngineConfig,
    server_config: ServerConfig,
    config: DecodeConfig,
    build: BuildParts,
) -> NextRole | None:
    """Startup, main loop, drain; the engine on a thread. Returns what the daemon was asked to
    become, if anything."""
    role_change = RoleChange("decode", (engine_config, server_config, config))
    with _parts(engine_config, config, build) as (parts, plane):
        codec = node_codec(engine_config, server_config, parts.model_config, parts.grammars.trials)
        node = DecodeNode(
            engine_config, server_config, config, parts, plane, codec, role_change=role_change
        )
        async with StopRequest(
            exit_with_parent=server_config.exit_with_parent, rotation=node.front.engine.rotation
        ) as stop:
            address = await node.startup()
            role_change.offer(address, node.front.http_address, stop.ask)
            spare_collections()
            announce_ready(address, node.front.http_address)
            await stop.wait()
            await node.shutdown()
    return role_change.wanted


async def run_apart(
    engine_config: EngineConfig,
    server_config: ServerConfig,
    config: DecodeConfig,
    build: BuildParts,
) -> NextRole | None:
    """As run(), the engine in a process of its own, and front workers where there are some."""
    role_change = RoleChange("decode", (engine_config, server_config, config))
    with node_sockets(server_config) as sockets:
        engine = await EngineProcess.launch(
            partial(run_engine, engine_config, server_config, config, build, sockets)
        )
        model = asked_model(engine_config)
        codec = node_codec(engine_config, server_config, model)
        sizes = await engine.stands()
        codec = with_trials(codec, sizes.trials)
        front = ClientFront(
            engine_config,
            server_config,
            model,
            codec,
            sizes.max_request_tokens,
            sizes.max_batch,
            engine.status,
            role_change,
        )
        workers = front.workers(engine, sockets)
        node = decode_front(
            engine,
            engine_config,
            server_config,
            config,
            front,
            engine.status,
            workers=workers,
        )
        await serve_apart(engine, node, server_config, role_change)
    return role_change.wanted


def run_engine(
    engine_config: EngineConfig,
    server_config: ServerConfig,
    config: DecodeConfig,
    build: BuildParts,
    sockets: NodeSockets | None,
    connection: socket.socket,
) -> int:
    """The engine's process. sockets: of a node with front workers. connection: to its front.
    Returns the exit status."""
    configure_logging(server_config.log_format, server_config.log_level)
    with ExitStack() as stack:

        def side(front: EngineHost) -> DecodeSide:
            parts, plane = stack.enter_context(_parts(engine_config, config, build))
            if parts.ranks is not None:
                parts.ranks.on_loss(front.end)
            return DecodeSide(engine_config, server_config, config, parts, plane, front)

        return host_engine(connection, side, None if sockets is None else sockets.engine)


def _parts(
    engine_config: EngineConfig, config: DecodeConfig, build: BuildParts
) -> AbstractContextManager[tuple[EngineParts, DataPlane]]:
    return pair_parts(
        engine_config,
        build,
        Role.DECODE,
        transport=config.transport,
        name=config.name,
        wire=config.wire,
    )
