"""What an engine's sizes come to where its config leaves them open. Pure."""

from tasuki.engine.config import EngineConfig, EngineConfigError
from tasuki.engine.role import Role
from tasuki.model.config import ModelConfig
from tasuki.pycache.layout import CacheLayout
from tasuki.utils.config.auto import Auto

from .memory_plan import MIB, MemoryPlan, batch_of_a_gpu
from .stored_weights import Share, whole

CPU_ARENA_MIB = 512
CPU_MAX_BATCH = 64
_FEWEST_SLABS = 4


def arena_slabs(
    config: EngineConfig,
    model: ModelConfig,
    role: Role,
    free: int | None,
    share: Share = whole,
) -> int:
    """free: bytes of the GPU before anything of ours is there; None: the engine is on a CPU. model,
    share: as of weights_of(). Raises EngineConfigError where the arena would be too small for any
    request."""
    layout = model.cache_layout(config.stored_kv, config.compute_dtype, config.ssm_dtype)
    if isinstance(config.arena_mib, Auto) and free is not None:
        return _slabs_that_fit(MemoryPlan.of(model, config, free, role, share=share))
    mib = CPU_ARENA_MIB if isinstance(config.arena_mib, Auto) else config.arena_mib
    slabs = mib * MIB // layout.slab_bytes
    if slabs < _FEWEST_SLABS:
        need = -(-_FEWEST_SLABS * layout.slab_bytes // MIB)
        raise EngineConfigError(
            f"arena_mib {mib} holds {slabs} slabs of {layout.slab_bytes} bytes; "
            f"give at least {need}"
        )
    return slabs


def _slabs_that_fit(plan: MemoryPlan) -> int:
    slabs = plan.slabs(plan.arena)
    if slabs < _FEWEST_SLABS:
        raise EngineConfigError(
            f"arena_mib auto: {plan.device // MIB} MiB of the GPU are free, of which weights and "
            f"workspace take {plan.beside // MIB}: that leaves {slabs} slabs of "
            f"{plan.layout.slab_bytes} bytes, and {_FEWEST_SLABS} are needed; free memory, give a "
            "smaller --max-batch or --prefill-chunk-tokens, or take a larger GPU"
        )
    return slabs


def max_batch(
    config: EngineConfig, layout: CacheLayout, role: Role, slabs: int, *, on_gpu: bool
) -> int:
    """Requests in one forward of an engine with an arena of so many slabs."""
    if on_gpu:
        return batch_of_a_gpu(config, layout, role, slabs)
    return CPU_MAX_BATCH if isinstance(config.max_batch, Auto) else config.max_batch
