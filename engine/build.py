"""From a config to a running engine: weights, arena, cache, runner."""

from dataclasses import dataclass

import torch

from ..model.checkpoint import load_weights
from ..model.config import ModelConfig
from ..model.prefill_cost import PrefillFlops
from ..model.qwen3_5 import Qwen35Model
from ..pycache.arena import Arena
from ..pycache.layout import CacheLayout
from ..pycache.prefix_cache import FreshIds, HybridPrefixCache, leave_as_is
from ..transfer.sender import Sender
from ..transfer.steps import StepCounter
from .config import EngineConfig, EngineConfigError
from .engine import Engine
from .role import Role
from .runner import HostRunner


@dataclass(frozen=True)
class EngineParts:
    """What must exist before an engine: a sender or receiver is built over the same arena."""

    model_config: ModelConfig
    model: Qwen35Model
    arena: Arena
    steps: StepCounter

    @property
    def layout(self) -> CacheLayout:
        return self.arena.layout


def build_parts(config: EngineConfig) -> EngineParts:
    """Load the model and allocate the arena. Raises the model's typed errors and
    EngineConfigError."""
    torch.set_num_threads(config.threads)
    if not config.model:
        raise EngineConfigError("model is not set: give the folder of a checkpoint with --model")
    model_config = ModelConfig.load(config.model)
    dtype = {"float32": torch.float32, "bfloat16": torch.bfloat16}[config.dtype]
    layout = model_config.cache_layout(config.dtype, config.dtype, config.ssm_dtype)
    slabs = config.arena_mib * 2**20 // layout.slab_bytes
    if slabs < 4:
        need = -(-4 * layout.slab_bytes // 2**20)
        raise EngineConfigError(
            f"arena_mib {config.arena_mib} holds {slabs} slabs of {layout.slab_bytes} bytes; "
            f"give at least {need}"
        )
    try:
        arena = Arena(layout, slabs)
    except RuntimeError as error:
        raise EngineConfigError(
            f"arena_mib {config.arena_mib} cannot be allocated: give less, or free memory"
        ) from error
    weights = load_weights(config.model, model_config, dtype)
    model = Qwen35Model(model_config, weights)
    return EngineParts(model_config, model, arena, StepCounter())


def build_engine(
    config: EngineConfig,
    role: Role,
    parts: EngineParts,
    sender: Sender | None = None,
    on_fresh: FreshIds = leave_as_is,
) -> Engine:
    """REQUIRES: sender is given exactly for Role.PREFILL and counts parts.steps."""
    flops = PrefillFlops.for_model(parts.model_config)
    cache = HybridPrefixCache(
        parts.arena,
        on_fresh,
        policy=config.cache_policy,
        attention_cost=flops.quadratic / flops.linear,
    )
    return Engine(
        config,
        role,
        cache,
        HostRunner(parts.model, parts.arena, parts.steps),
        max_position=parts.model_config.max_position,
        vocab_size=parts.model_config.vocab,
        eos_ids=parts.model_config.eos_ids,
        sender=sender,
    )
