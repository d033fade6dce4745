"""The memory plan of a model that runs on a CPU alone: weights, tables, arena, by parts.

Pure but for the checkpoint's headers: no weights are read.
"""

from tasuki.engine.assembly.memory_plan import MIB, Share, arena_slabs, max_batch, weights_of
from tasuki.engine.config import EngineConfig, Role
from tasuki.model.config import ModelConfig
from tasuki.model.families.registry import family_of

_PLACES = {
    "disk": "mapped from the checkpoint's files, one copy for all ranks",
    "host": "read into memory at the start, one copy for all ranks",
}


def cpu_plan(model: ModelConfig, config: EngineConfig, quantization: str, share: Share) -> str:
    """Return the plan as lines of text. model, share: see weights_of(). quantization: the weights'
    format, if the config's folder has none. Raises WeightsError, ModelConfigError and
    EngineConfigError."""
    layout = model.cache_layout(config.stored_kv, config.compute_dtype, config.ssm_dtype)
    sizes = weights_of(model, config, quantization, share)
    slabs = arena_slabs(config, model, Role.FUSED, None)
    ranks = config.tensor_parallel
    batch = max_batch(config, layout, Role.FUSED, slabs, on_gpu=False)
    pages = slabs * layout.pages_per_slab
    rows = [
        *(
            [("ranks", f"{ranks:>10}      processes, of which this is the plan of one")]
            * (ranks > 1)
        ),
        ("weights", _mib(sizes.total)),
        *_of_tables(sizes.tables, config),
        ("arena", f"{_mib(slabs * layout.slab_bytes)}  {slabs} slabs, or {pages} pages"),
        (
            "a slab",
            f"{_mib(layout.slab_bytes)}  one state slot of {layout.slot_bytes / MIB:.2f} MiB, or "
            f"{layout.pages_per_slab} pages of {layout.page_bytes / MIB:.3f} MiB",
        ),
        ("requests in a forward", f"{batch:>10}"),
    ]
    family = family_of(model)
    head = f"{family.name} has no kernels for GPUs as yet: a plan of a CPU"
    return "\n".join([head, *(f"{name:<30}{value}" for name, value in rows)])


def _of_tables(size: int, config: EngineConfig) -> list[tuple[str, str]]:
    """Return the row of n-gram tables; none without one."""
    if not size:
        return []
    place = config.ngram_table
    return [("n-gram tables", f"{_mib(size)}  {_PLACES[place]} (--ngram-table {place})")]


def _mib(size: int) -> str:
    return f"{size / MIB:>10.1f} MiB"
