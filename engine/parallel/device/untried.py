"""What no GPUs have shown that ranks do right, and is refused there by name.

Each refusal goes with the test of tests/gpu that shows it. TASUKI_UNTRIED in the environment lifts
them for those who try: tests and benches.
"""

import logging
import os
from collections.abc import Iterator
from pathlib import Path

from tasuki.engine.config import EngineConfig, EngineConfigError
from tasuki.engine.role import Role
from tasuki.model.config import ModelConfig, MoeShape
from tasuki.model.quantization_config import QuantizationConfig

log = logging.getLogger(__name__)

VARIABLE = "TASUKI_UNTRIED"


def check_tried(config: EngineConfig, model: ModelConfig, role: Role) -> None:
    """Raises EngineConfigError. REQUIRES: several ranks on GPUs."""
    for reason in _untried(config, model, role):
        if not os.environ.get(VARIABLE):
            raise EngineConfigError(
                f"tensor_parallel is {config.tensor_parallel}, and {reason}, or give "
                "--tensor-parallel 1 or --device cpu"
            )
        log.warning("%s is set: %s", VARIABLE, reason)


def _untried(config: EngineConfig, model: ModelConfig, role: Role) -> Iterator[str]:
    if role is not Role.FUSED:
        yield (
            "what several ranks on GPUs hold is not handed over, as yet: serve the model with "
            "`tasuki serve`"
        )
    method = QuantizationConfig.load(Path(config.model)).method
    if method is not None:
        yield (
            f"model {config.model} is quantised ({method}), which ranks on GPUs do not compute, as "
            "yet: give a checkpoint that is not"
        )
    if isinstance(model.feed_forward, MoeShape):
        yield "ranks on GPUs have not been tried with experts, as yet: give a dense model"
    if config.host_cache_gib is not None:
        yield (
            "ranks on GPUs have not been tried with tiers below the arena, as yet: leave "
            "--host-cache-gib out"
        )
    if config.stored_kv != config.dtype:
        yield (
            "ranks on GPUs have not been tried with keys and values in another dtype, as yet: "
            "leave --kv-dtype out"
        )
    if config.drafts_on_gpu:
        yield "ranks on GPUs have not been tried with drafts, as yet: give --speculate off"
