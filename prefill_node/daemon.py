"""The life of the daemon that reads prompts and hands prefixes on: startup, main loop, drain."""

import asyncio
import logging
import socket
from contextlib import AbstractContextManager, ExitStack
from functools import partial

from tasuki.engine.assembly.parts import BuildParts, EngineParts, asked_model, pair_parts
from tasuki.engine.config import EngineConfig, EngineConfigError, Role
from tasuki.prefill_node.config import PrefillConfig
from tasuki.prefill_node.engine_side import PrefillSide
from tasuki.prefill_node.node import PrefillNode, prefill_front
from tasuki.server.config import ServerConfig
from tasuki.server.daemon.engine_host import EngineHost, host_engine
from tasuki.server.daemon.engine_process import EngineProcess, serve_apart
from tasuki.server.daemon.shutdown import StopRequest
from tasuki.server.daemon.startup import announce_ready, spare_collections
from tasuki.server.role_change import NextRole, RoleChange, become
from tasuki.transfer.data_plane import DataPlane
from tasuki.utils.logs import configure_logging

log = logging.getLogger(__name__)


def run_daemon(
    engine_config: EngineConfig,
    server_config: ServerConfig,
    config: PrefillConfig,
    build: BuildParts,
) -> None:
    """Blocks until the node has drained; where its role changes it does not return. Raises
    EngineConfigError and the typed errors of what is built."""
    apart = engine_apart(engine_config, server_config, config)
    running = run_apart if apart else run
    wanted = asyncio.run(running(engine_config, server_config, config, build))
    if wanted is not None:
        become(wanted)


def engine_apart(
    engine_config: EngineConfig, server_config: ServerConfig, config: PrefillConfig
) -> bool:
    """Whether the engine has a process of its own. Decode nodes are served where the engine is, so
    not where they or a gateway share the front's port. Raises EngineConfigError."""
    ranks = engine_config.tensor_parallel
    if not server_config.engine_apart(engine_config.device, ranks):
        return False
    if config.handover_bind and not server_config.gateway:
        return True
    if ranks > 1:
        raise EngineConfigError(
            f"an engine of {ranks} ranks has a process of its own: give --handover-bind, and no "
            "--gateway"
        )
    if server_config.engine_process == "process":
        log.warning(
            "the engine stays on a thread: a process of its own needs --handover-bind, and no "
            "--gateway"
        )
    return False


async def run(
    engine_config: EngineConfig,
    server_config: ServerConfig,
    config: PrefillConfig,
    build: BuildParts,
) -> NextRole | None:
    """Startup, main loop, drain; the engine on a thread. Returns what the daemon was asked to
    become, if anything."""
    role_change = RoleChange("prefill", (engine_config, server_config, config))
    with _parts(engine_config, config, build) as (parts, plane):
        node = PrefillNode(
            engine_config, server_config, config, parts, plane, role_change=role_change
        )
        async with StopRequest(
            exit_with_parent=server_config.exit_with_parent, rotation=node.front.engine.rotation
        ) as stop:
            address = await node.startup()
            role_change.offer(address, node.front.http_address, stop.ask)
            spare_collections()
            announce_ready(address, node.front.http_address, node.handover_address)
            await stop.wait()
            await node.shutdown()
    return role_change.wanted


async def run_apart(
    engine_config: EngineConfig,
    server_config: ServerConfig,
    config: PrefillConfig,
    build: BuildParts,
) -> NextRole | None:
    """As run(), the engine in a process of its own."""
    role_change = RoleChange("prefill", (engine_config, server_config, config))
    engine = await EngineProcess.launch(
        partial(run_engine, engine_config, server_config, config, build)
    )
    sizes = await engine.stands()
    node = prefill_front(
        engine,
        engine_config,
        server_config,
        config,
        asked_model(engine_config),
        sizes.max_request_tokens,
        sizes.max_batch,
        engine.status,
        role_change,
    )
    await serve_apart(engine, node, server_config, role_change)
    return role_change.wanted


def run_engine(
    engine_config: EngineConfig,
    server_config: ServerConfig,
    config: PrefillConfig,
    build: BuildParts,
    connection: socket.socket,
) -> int:
    """The engine's process. connection: to its front. Returns the exit status."""
    configure_logging(server_config.log_format, server_config.log_level)
    with ExitStack() as stack:

        def side(front: EngineHost) -> PrefillSide:
            parts, plane = stack.enter_context(_parts(engine_config, config, build))
            if parts.ranks is not None:
                parts.ranks.on_loss(front.end)
            return PrefillSide(engine_config, server_config, config, parts, plane, front)

        return host_engine(connection, side)


def _parts(
    engine_config: EngineConfig, config: PrefillConfig, build: BuildParts
) -> AbstractContextManager[tuple[EngineParts, DataPlane]]:
    return pair_parts(
        engine_config,
        build,
        Role.PREFILL,
        transport=config.transport,
        name=config.name,
        wire=config.wire,
    )
