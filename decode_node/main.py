"""`tasuki decode`: the daemon that takes prefixes over and writes answers; the front door."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

from ..engine.build import build_parts
from ..engine.config import EngineConfig
from ..front.config import FrontConfig
from ..front.flags import parse_configs
from ..front.lifecycle import StopRequest, announce_ready
from ..front.logs import configure_logging
from ..front.progress_bar import progress_bar
from ..front.text_codec import TextCodec
from ..model.checkpoint import weights_digest
from ..transfer.data_plane import DataPlane
from ..transfer.transports.choice import build_transport
from .config import DecodeConfig
from .node import DecodeNode


def main(argv: Sequence[str]) -> int:
    engine_config, front_config, config = parse_configs(
        "tasuki decode", "A decode node.", argv, EngineConfig, FrontConfig, DecodeConfig
    )
    configure_logging(front_config.log_format, front_config.log_level)
    asyncio.run(run(engine_config, front_config, config))
    return 0


async def run(engine_config: EngineConfig, front_config: FrontConfig, config: DecodeConfig) -> None:
    """Startup, main loop, drain."""
    parts = build_parts(engine_config, progress_bar("weights"))
    model = parts.model_config
    codec = TextCodec.load(Path(engine_config.model), model.vocab, model.max_position)
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
        node = DecodeNode(engine_config, front_config, config, parts, plane, codec)
        async with StopRequest(exit_with_parent=front_config.exit_with_parent) as stop:
            announce_ready(await node.startup(), node.front.http_address)
            await stop.wait()
            await node.shutdown()
    finally:
        transport.close()
