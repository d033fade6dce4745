"""`tasuki serve --dry-run`: prints the memory plan of a GPU and allocates nothing."""

from collections import Counter
from functools import partial
from pathlib import Path

import torch

from tasuki.engine.assembly.memory_plan import (
    MIB,
    MemoryPlan,
    Share,
    arena_slabs,
    weights_of,
    whole,
)
from tasuki.engine.assembly.parts import with_context, with_drafts
from tasuki.engine.assembly.ranks import shard_of
from tasuki.engine.config import EngineConfig, EngineConfigError, Role
from tasuki.model.config import ModelConfig
from tasuki.model.config_json import QuantizationConfig
from tasuki.model.drafter.weights import drafter_bytes
from tasuki.model.drafter_shape import DrafterShape
from tasuki.model.families.registry import family_of, published_or_folder
from tasuki.model.weights.safetensors_folder import check_kernels
from tasuki.model.weights.source import ShardedSource
from tasuki.pycache.layout import CacheLayout
from tasuki.utils.options import Auto

from .picture_plan import cpu_pictures
from .serve_config import GPUS, DryRunConfig

_CONTEXTS = (8_192, 50_000)


def dry_run(engine_config: EngineConfig, config: DryRunConfig) -> str:
    """Return the memory plan as text; without a GPU here or in the config, one plan for each known
    GPU. Raises EngineConfigError. Raises ModelConfigError if the model does not exist. Raises
    WeightsError if its weights or its draft layer cannot be read, or have no kernels."""
    if not engine_config.model:
        raise EngineConfigError("model is not set: give a folder or a published name with --model")
    name = engine_config.model
    if engine_config.revision:
        raise EngineConfigError(
            f"revision {engine_config.revision}: a plan fetches nothing, and --model {name} is a "
            "folder or a published name: leave it out"
        )
    model = with_context(with_drafts(published_or_folder(name), engine_config), engine_config)
    if config.quantization and Path(name).is_dir():
        raise EngineConfigError(
            f"quantization is {config.quantization}, and --model is a folder, whose files say how "
            "weights are stored: leave it out, or give a published name"
        )
    family = family_of(model)
    if family.has_kernels:
        _check_folder(Path(name))
    share: Share = whole
    if engine_config.tensor_parallel > 1:
        shard = shard_of(engine_config, 0)
        cuts = family.cuts(model)
        share = partial(ShardedSource, cuts=cuts, shard=shard)
        model = cuts.part(shard)

    if model.drafter is not None or not family.has_kernels:
        return on_a_cpu(model, engine_config, config.quantization, share)

    def planned(free: int, total: int) -> str:
        device = engine_config.usable_of(free, total)
        plan = MemoryPlan.of(model, engine_config, device, Role.FUSED, config.quantization, share)
        return as_text(plan, engine_config)

    if config.gpu or torch.cuda.is_available():
        return planned(*gpu_bytes(config.gpu))
    # Without a GPU here, the question is: on which GPU would it fit?
    plans = [f"{name}\n{planned(*gpu_bytes(name))}" for name in GPUS]
    seen = cpu_pictures(engine_config)
    head = "no GPU is here: a plan of each that is known, one with --gpu"
    return "\n\n".join([head, *plans, *filter(None, [seen])])


def on_a_cpu(
    model: ModelConfig, engine_config: EngineConfig, quantization: str, share: Share
) -> str:
    """Return the memory plan of a model or block drafter without kernels for GPUs, as text. Raises
    WeightsError, EngineConfigError."""
    sizes = weights_of(model, engine_config, quantization, share)
    slabs = arena_slabs(engine_config, model, Role.FUSED, None, share)
    layout = model.cache_layout(
        engine_config.stored_kv, engine_config.compute_dtype, engine_config.ssm_dtype
    )
    rows = [
        ("weights", _mib(sizes.total)),
        *_of_drafter(model.drafter, engine_config),
        *_of_tables(sizes.tables, engine_config),
        (
            f"arena {_how(engine_config.arena_mib)}",
            f"{_mib(slabs * layout.slab_bytes)}  {slabs} slots or {slabs * layout.pages_per_slab} "
            "pages",
        ),
        ("a slab", _slab(layout)),
        *_layers(layout),
    ]
    name = family_of(model).name if model.drafter is None else "the block drafter"
    head = f"{name} has no kernels for GPUs, as yet: a plan for --device cpu"
    return "\n".join([head, *(f"{row:<30}{value}" for row, value in rows)])


def _layers(layout: CacheLayout) -> list[tuple[str, str]]:
    """Return a row for each kind of layer: its number, and the names and shapes of its parts."""
    rows = []
    for cache, count in Counter(layout.layers).items():
        page, slot = (
            ", ".join(f"{part.name} {list(part.shape)}" for part in parts) or "nothing"
            for parts in (cache.page, cache.slot)
        )
        rows.append((cache.kind, f"{count:>10}      a page has {page}; a slot has {slot}"))
    return rows


def _of_drafter(shape: DrafterShape | None, config: EngineConfig) -> list[tuple[str, str]]:
    """Return the row of a block drafter; none without one."""
    if shape is None:
        return []
    size = drafter_bytes(shape, getattr(torch, config.compute_dtype))
    return [("block drafter", f"{_mib(size)}  up to {shape.most_drafts} drafts in one pass")]


_PLACES = {"disk": "mapped from their files", "host": "read into memory at the start"}


def _of_tables(size: int, config: EngineConfig) -> list[tuple[str, str]]:
    """Return the row of n-gram tables; none without one."""
    if not size:
        return []
    place = config.ngram_table
    about = f"{_PLACES[place]}, one copy for all ranks (--ngram-table {place})"
    return [("n-gram tables", f"{_mib(size)}  {about}")]


def _slab(layout: CacheLayout) -> str:
    return (
        f"{_mib(layout.slab_bytes)}  one state slot of {layout.slot_bytes / MIB:.1f} MiB, or "
        f"{layout.pages_per_slab} pages of {layout.page_bytes / MIB:.2f} MiB, with keys and "
        f"values in {layout.page_dtype}"
    )


def _check_folder(folder: Path) -> None:
    """Check the weights in the checkpoint folder. Raises WeightsError if a GPU could not run them,
    EngineConfigError if their size is unknown."""
    if any(folder.glob("*.safetensors")):
        check_kernels(folder, torch.device("cuda"))
        return
    method = QuantizationConfig.load(folder).method
    if method is not None:
        raise EngineConfigError(
            f"model {folder} is quantised ({method}) and holds no weights to count: fetch them, or "
            "plan for a published name with --quantization"
        )


def gpu_bytes(name: str) -> tuple[int, int]:
    """Return the (free, total) bytes of a GPU. name: a known GPU, or a size in MiB; all of its
    memory counts as free. Empty: this machine's GPU. Raises EngineConfigError. REQUIRES: a name, or
    a GPU in this machine."""
    if name.lower() in GPUS:
        return (GPUS[name.lower()] * MIB,) * 2
    if name.isdecimal():
        return (int(name) * MIB,) * 2
    if name:
        raise EngineConfigError(f"gpu {name!r} is not known: use {', '.join(GPUS)}, or its MiB")
    return torch.cuda.mem_get_info()


def as_text(plan: MemoryPlan, config: EngineConfig) -> str:
    """Return the memory plan as lines of text. config: config of the planned engine."""
    layout = plan.layout
    ranks = config.tensor_parallel
    of_ranks = f"{ranks:>10}      each on a GPU of its own, of which this is the plan of one"
    rows = [
        *([("ranks", of_ranks)] if ranks > 1 else []),
        ("GPU memory", _mib(plan.device)),
        ("weights", _mib(plan.weights)),
        ("rotary angles", _mib(plan.rotary)),
        *_of_tower(plan),
        ("workspace of a prefill chunk", _mib(plan.workspace)),
        ("gathered keys and values", f"{_mib(plan.gathered)}  {plan.context_tokens} tokens"),
        (
            "decode graphs",
            f"{_mib(plan.graphs)}  of up to {plan.max_batch} requests, {_how(config.max_batch)}",
        ),
        ("CUDA context and libraries", _mib(plan.context)),
        (
            f"arena {_how(config.arena_mib)}",
            f"{_mib(plan.arena)}  {_contents(plan, plan.arena)}",
        ),
        (
            "largest arena that fits",
            f"{_mib(plan.fitting_arena)}  {_contents(plan, plan.fitting_arena)}",
        ),
        ("a slab", _slab(layout)),
    ]
    lines = [f"{name:<30}{value}" for name, value in rows]
    verdict = (
        "the plan fits"
        if plan.fits
        else f"the plan does not fit: give at most --arena-mib {plan.fitting_arena // MIB}"
        if plan.fitting_arena
        else "the plan does not fit: the weights and workspace alone fill this GPU"
    )
    return "\n".join([*lines, verdict])


def _of_tower(plan: MemoryPlan) -> list[tuple[str, str]]:
    """Return the rows of a vision tower; none without one."""
    tower = plan.tower
    if not tower.weights:
        return []
    return [
        ("vision tower", f"{_mib(tower.weights)}  none with --vision off"),
        ("rows of pictures", f"{_mib(tower.rows)}  --picture-rows-mib"),
        ("workspace of a picture", _mib(tower.workspace)),
    ]


def _how(given: int | Auto) -> str:
    return "auto" if isinstance(given, Auto) else "as configured"


def _contents(plan: MemoryPlan, arena: int) -> str:
    slabs = plan.slabs(arena)
    running = ", ".join(
        f"{plan.requests(arena, tokens)} requests of {tokens} tokens" for tokens in _CONTEXTS
    )
    return f"{slabs} slabs: {slabs} slots or {plan.pages(arena)} pages; {running}"


def _mib(count: int) -> str:
    return f"{count / MIB:>10.0f} MiB"
