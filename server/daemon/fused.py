"""`tasuki serve`: one process that prefills and decodes, with no hand-over."""

import asyncio
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from tasuki.engine.build import BuildParts, build_cache, build_fused_engine, build_parts
from tasuki.engine.config import EngineConfig
from tasuki.engine.role import Role
from tasuki.server.config import ServerConfig
from tasuki.server.grpc.services import grpc_services
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


def main(argv: Sequence[str], build: BuildParts = build_parts) -> int:
    """build: what it serves; by default the checkpoint that the flags name."""
    engine_config, server_config, plan_config = parse_configs(
        "tasuki serve",
        "One process that prefills and decodes.",
        argv,
        EngineConfig,
        ServerConfig,
        DryRunConfig,
    )
    if plan_config.dry_run:
        print(dry_run(engine_config, plan_config))
        return 0
    configure_logging(server_config.log_format, server_config.log_level)
    asyncio.run(serve(engine_config, server_config, build))
    return 0


async def serve(
    engine_config: EngineConfig, server_config: ServerConfig, build: BuildParts
) -> None:
    """Startup, main loop, drain."""
    parts = build(engine_config, progress_bar("weights"), Role.FUSED)
    model = parts.model_config
    codec = TextCodec.load(
        Path(engine_config.model),
        model.vocab,
        model.max_position,
        server_config.chat_cache_bytes,
    )
    engine = build_fused_engine(
        engine_config, parts, build_cache(engine_config, parts), progress_bar("decode graphs")
    )
    served = served_model(engine_config.model, server_config, engine.max_request_tokens, codec)
    gateway = gateway_of(
        engine_config,
        server_config,
        model,
        engine.max_request_tokens,
        engine.max_batch,
        codec.tokenizer,
    )
    node = Node(
        engine,
        server_config,
        lambda client: (
            *grpc_services(client, codec, server_config),
            *gateway(client),
        ),
        routes=partial(openai_routes, model=served),
        tracing=open_tracing(server_config.otlp_endpoint, "serve", "fused"),
        chat_tokens=codec.chat_tokens,
    )
    async with StopRequest(exit_with_parent=server_config.exit_with_parent) as stop:
        address = await node.startup()
        spare_collections()
        announce_ready(address, node.http_address)
        await stop.wait()
        await node.shutdown()
