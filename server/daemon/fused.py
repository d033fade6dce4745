"""`tasuki serve`: one process that prefills and decodes, with no hand-over."""

import asyncio
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from tasuki.engine.build import build_cache, build_fused_engine, build_parts
from tasuki.engine.config import EngineConfig
from tasuki.server.config import FrontConfig
from tasuki.server.grpc.services import front_services
from tasuki.server.openai.routes import openai_routes, served_model
from tasuki.server.smg.factory import gateway_of
from tasuki.server.text.text_codec import TextCodec
from tasuki.server.tracing.tracing import open_tracing
from tasuki.utils.config.flags import parse_configs
from tasuki.utils.logs import configure_logging
from tasuki.utils.progress import progress_bar

from .dry_run import DryRunConfig, dry_run
from .lifecycle import StopRequest, announce_ready, spare_collections
from .node import Node


def main(argv: Sequence[str]) -> int:
    engine_config, front_config, plan_config = parse_configs(
        "tasuki serve",
        "One process that prefills and decodes.",
        argv,
        EngineConfig,
        FrontConfig,
        DryRunConfig,
    )
    if plan_config.dry_run:
        print(dry_run(engine_config, plan_config))
        return 0
    configure_logging(front_config.log_format, front_config.log_level)
    asyncio.run(serve(engine_config, front_config))
    return 0


async def serve(engine_config: EngineConfig, front_config: FrontConfig) -> None:
    """Startup, main loop, drain."""
    parts = build_parts(engine_config, progress_bar("weights"))
    model = parts.model_config
    codec = TextCodec.load(Path(engine_config.model), model.vocab, model.max_position)
    engine = build_fused_engine(
        engine_config, parts, build_cache(engine_config, parts), progress_bar("decode graphs")
    )
    served = served_model(engine_config.model, front_config, engine.max_request_tokens, codec)
    gateway = gateway_of(
        engine_config, front_config, model, engine.max_request_tokens, codec.tokenizer
    )
    node = Node(
        engine,
        front_config,
        lambda client: (
            *front_services(client, codec, front_config),
            *gateway(client),
        ),
        routes=partial(openai_routes, model=served),
        tracing=open_tracing(front_config.otlp_endpoint, "serve", "fused"),
    )
    async with StopRequest(exit_with_parent=front_config.exit_with_parent) as stop:
        address = await node.startup()
        spare_collections()
        announce_ready(address, node.http_address)
        await stop.wait()
        await node.shutdown()
