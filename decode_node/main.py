"""`tasuki decode`: the daemon to receive prefixes, write answers and serve clients."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tasuki.decode_node.config import DecodeConfig
from tasuki.engine.config import EngineConfig
from tasuki.server.bind import check_binds
from tasuki.server.config import ServerConfig
from tasuki.server.daemon.startup import log_loading, with_local_checkpoint
from tasuki.utils.flags import parse_configs
from tasuki.utils.logs import configure_logging

if TYPE_CHECKING:
    from tasuki.engine.assembly.parts import BuildParts

CONFIGS = (EngineConfig, ServerConfig, DecodeConfig)


def main(argv: Sequence[str], build: "BuildParts | None" = None) -> int:
    """Run the decode daemon. build: builds the engine's parts; None: build them from the checkpoint
    named by the flags."""
    engine_config, server_config, config = parse_configs(
        "tasuki decode", "A decode node.", argv, *CONFIGS
    )
    configure_logging(server_config.log_format, server_config.log_level)
    engine_config, server_config = with_local_checkpoint(engine_config, server_config)
    binds = {"bind": server_config.bind, "http_bind": server_config.http_bind}
    check_binds(binds, server_config.access)
    log_loading(engine_config)
    # Import this only after the flags were checked, because torch takes seconds.
    from tasuki.decode_node.node import DecodeDaemon
    from tasuki.engine.assembly.ranks import build_node_parts

    DecodeDaemon(engine_config, server_config, config, build or build_node_parts).run()
    return 0
