"""`tasuki prefill`: the daemon that reads prompts and hands their prefixes on."""

import asyncio
from collections.abc import Sequence

from ..engine.build import build_parts
from ..engine.config import EngineConfig
from ..front.config import FrontConfig
from ..front.flags import parse_configs
from ..front.lifecycle import StopRequest, announce_ready
from ..front.logs import configure_logging
from ..front.progress_bar import progress_bar
from ..model.checkpoint import weights_digest
from ..transfer.data_plane import DataPlane
from ..transfer.transports.choice import build_transport
from .config import PrefillConfig
from .node import PrefillNode


def main(argv: Sequence[str]) -> int:
    engine_config, front_config, config = parse_configs(
        "tasuki prefill", "A prefill node.", argv, EngineConfig, FrontConfig, PrefillConfig
    )
    configure_logging(front_config.log_format, front_config.log_level)
    asyncio.run(run(engine_config, front_config, config))
    return 0


async def run(
    engine_config: EngineConfig, front_config: FrontConfig, config: PrefillConfig
) -> None:
    """Startup, main loop, drain."""
    parts = build_parts(engine_config, progress_bar("weights"))
    transport = build_transport(config.transport, config.name, parts.arena.bytes.device)
    try:
        plane = DataPlane.over(
            parts.arena.bytes,
            parts.layout,
            weights_digest(engine_config.model),
            transport,
            config.transport,
            config.name,
        )
        node = PrefillNode(engine_config, front_config, config, parts, plane)
        async with StopRequest(exit_with_parent=front_config.exit_with_parent) as stop:
            announce_ready(await node.startup(), node.front.http_address)
            await stop.wait()
            await node.shutdown()
    finally:
        transport.close()
