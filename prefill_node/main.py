"""`tasuki prefill`: the daemon that reads prompts and hands their prefixes on."""

import asyncio
from collections.abc import Sequence

from tasuki.engine.build import BuildParts, build_parts
from tasuki.engine.config import EngineConfig
from tasuki.engine.role import Role
from tasuki.model.weights.safetensors_folder import weights_digest
from tasuki.server.config import ServerConfig
from tasuki.server.daemon.lifecycle import StopRequest, announce_ready, spare_collections
from tasuki.server.role_change import NextRole, RoleChange, become
from tasuki.transfer.data_plane import DataPlane
from tasuki.transfer.transports.factory import build_transport
from tasuki.utils.config.flags import parse_configs
from tasuki.utils.logs import configure_logging
from tasuki.utils.progress import progress_bar

from .config import PrefillConfig
from .node import PrefillNode

CONFIGS = (EngineConfig, ServerConfig, PrefillConfig)


def main(argv: Sequence[str], build: BuildParts = build_parts) -> int:
    """build: what it serves; by default the checkpoint that the flags name."""
    engine_config, server_config, config = parse_configs(
        "tasuki prefill", "A prefill node.", argv, *CONFIGS
    )
    configure_logging(server_config.log_format, server_config.log_level)
    wanted = asyncio.run(run(engine_config, server_config, config, build))
    if wanted is not None:
        become(wanted)
    return 0


async def run(
    engine_config: EngineConfig,
    server_config: ServerConfig,
    config: PrefillConfig,
    build: BuildParts,
) -> NextRole | None:
    """Startup, main loop, drain. Returns what the daemon was asked to become, if anything."""
    role_change = RoleChange("prefill", (engine_config, server_config, config))
    parts = build(engine_config, progress_bar("weights"), Role.PREFILL)
    transport = build_transport(config.transport, config.name, parts.arena.bytes.device)
    try:
        plane = DataPlane.over(
            parts.arena.bytes,
            parts.layout,
            weights_digest(engine_config.model),
            transport,
            config.transport,
            config.name,
            config.wire,
            angles=parts.model_config.angles,
        )
        node = PrefillNode(
            engine_config, server_config, config, parts, plane, role_change=role_change
        )
        async with StopRequest(exit_with_parent=server_config.exit_with_parent) as stop:
            address = await node.startup()
            role_change.offer(address, node.front.http_address, stop.ask)
            spare_collections()
            announce_ready(address, node.front.http_address, node.handover_address)
            await stop.wait()
            await node.shutdown()
    finally:
        transport.close()
    return role_change.wanted
