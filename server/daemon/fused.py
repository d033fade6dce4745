"""`tasuki serve`: a node with prefill and decode in one engine, without a hand-over."""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from tasuki.engine.config import EngineConfig
from tasuki.server.bind import check_binds
from tasuki.server.config import ServerConfig
from tasuki.utils.flags import parse_configs
from tasuki.utils.logs import configure_logging

from .serve_config import DryRunConfig, HttpAddress, ServeConfig
from .startup import log_loading, with_local_checkpoint

if TYPE_CHECKING:
    from tasuki.engine.assembly.parts import BuildParts


def main(argv: Sequence[str], build: "BuildParts | None" = None) -> int:
    """Run `tasuki serve` or its dry run, and return 0. build: loads the model; None: loads the
    checkpoint named by the flags."""
    engine_config, server_config, plan_config, http, own = parse_configs(
        "tasuki serve",
        "One node that prefills and decodes.",
        argv,
        EngineConfig,
        ServerConfig,
        DryRunConfig,
        HttpAddress,
        ServeConfig,
    )
    if plan_config.dry_run:
        from .dry_run import dry_run

        print(dry_run(engine_config, plan_config))
        return 0
    configure_logging(server_config.log_format, server_config.log_level)
    server_config = replace(server_config, http_bind=http.bind(server_config.http_bind))
    engine_config, server_config = with_local_checkpoint(engine_config, server_config)
    binds = {"bind": server_config.bind, "http_bind": server_config.http_bind}
    check_binds(binds, server_config.access)
    log_loading(engine_config)
    # Imported after the check of the flags, because torch takes seconds.
    from tasuki.engine.assembly.ranks import build_node_parts

    from .fused_node import run

    run(engine_config, server_config, build or build_node_parts, own.name)
    return 0
