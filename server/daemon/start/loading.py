"""What a node is about to load, said before anything slow begins."""

import logging

from tasuki.engine.config import AUTO_DTYPE, EngineConfig

log = logging.getLogger(__name__)


def log_loading(config: EngineConfig) -> None:
    """REQUIRES: the model is a folder."""
    log.info(
        "loading %s as %s on %s%s",
        *(config.model, config.compute_dtype, config.device, _reason(config)),
    )


def _reason(config: EngineConfig) -> str:
    """Why auto is that dtype; empty where it was given."""
    if config.dtype != AUTO_DTYPE:
        return ""
    if config.device.split(":")[0] != "cpu":
        return ", as GPUs multiply it"
    has = "no bf16 units" if config.compute_dtype == "float32" else "bf16 units"
    return f", since this CPU has {has} (--dtype says otherwise)"
