"""The memory of an engine: weights, arena and batch sizes."""

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import torch

from tasuki.engine.config import EngineConfig, EngineConfigError, Role
from tasuki.engine.runner.rows import MOST_ROWS, padded_sizes
from tasuki.model.attention_split import AttentionSplit
from tasuki.model.config import ModelConfig
from tasuki.model.config_json import QuantizationConfig
from tasuki.model.costs import ShapesOnly, WeightSizes
from tasuki.model.drafts import FIRST_IDS
from tasuki.model.families.registry import family_of
from tasuki.model.ops.attention.spans.rule import SPANS
from tasuki.model.ops.sampling.prompt_scores import SCORED_LOGIT_BYTES, SCORED_ROWS
from tasuki.model.protocol import GpuSizes
from tasuki.model.quantise.checkpoint import RECIPES
from tasuki.model.quantise.source import QuantisedSource
from tasuki.model.weights.safetensors_files import StoredShapes
from tasuki.model.weights.safetensors_folder import Checkpoint
from tasuki.model.weights.source import TensorSource
from tasuki.pycache.layout import PAGE_TOKENS, CacheLayout
from tasuki.pycache.parts import FP8_ROWS
from tasuki.utils.options import Auto

from .towers import TowerMemory

Share = Callable[[TensorSource], TensorSource]
"""A function from a source of the whole model's tensors to a rank's part of it."""


def whole(source: TensorSource) -> TensorSource:
    """Return the source unchanged, for a rank with all of the model."""
    return source


def weights_of(
    model: ModelConfig, config: EngineConfig, quantization: str = "", share: Share = whole
) -> WeightSizes:
    """Return the bytes of the weights of a config's model, as stored in memory.

    A quantised folder is measured by the headers of its files. Otherwise plain weights are assumed.
    model: the rank's part of the model. share: selects the rank's part of a tensor source.
    quantization: a format to assume instead of the folder's. Raises WeightsError and
    ModelConfigError.
    """
    count = partial(family_of(model).weight_sizes, model, getattr(torch, config.compute_dtype))
    if quantization:
        return count(share(QuantisedSource(ShapesOnly(), RECIPES[quantization])))
    folder = Path(config.model)
    is_quantised = bool(config.model) and QuantizationConfig.load(folder).method is not None
    if not is_quantised or not any(folder.glob("*.safetensors")):
        return count(ShapesOnly())
    with Checkpoint(folder, StoredShapes) as stored:
        return count(share(stored))


MIB = 2**20
# First the context, loaded kernels and cuBLAS workspaces; then the driver's part of each captured
# graph.
_CONTEXT_BYTES = 1280 * MIB
_GRAPHS_BYTES = 512 * MIB
# Share of the remaining memory, so fragmentation of the caching allocator does not end a server.
_HEADROOM = 0.02
_SHARES = 2 * 160
"""Most parts of a split attention kernel: two for each of a GPU's multiprocessors."""
_MOST_REQUESTS = 256
"""Most requests of a forward if `max_batch` is auto. Each further one keeps memory for its logits
and rows."""
_PAGES_OF_A_REQUEST = 4
"""Fewest pages planned for a request, besides its working slots. A request with fewer hardly
profits from a batch."""


@dataclass(frozen=True)
class MemoryPlan:
    """The use of a GPU's memory, computed before any allocation.

    Weights, slabs, slots and pages are exact, from the shapes to be allocated. The rotary table and
    the gathered keys and values of long prompts are exact too. The rest of the workspace is the
    widest block's activations for one prompt chunk. Graphs and the CUDA context are allowances,
    checked against a GPU in docs/kernels.md. tower: the vision tower's, all 0 without one. Pure.

    Units are bytes, unless another one is given. device: free memory of the GPU before this process
    uses any. arena: the configured size, or all that fits. max_batch: requests in one forward,
    configured or derived. context_tokens: the longest context in tokens allowed by model and arena.
    fitting_arena: the largest arena possible together with everything else, in whole slabs; 0 if
    not even the weights fit.
    """

    layout: CacheLayout
    working_slots: int
    device: int
    weights: int
    rotary: int
    workspace: int
    gathered: int
    graphs: int
    context: int
    arena: int
    fitting_arena: int
    max_batch: int
    context_tokens: int
    tower: TowerMemory = field(default_factory=TowerMemory)

    @staticmethod
    def of(
        model: ModelConfig,
        config: EngineConfig,
        device: int,
        role: Role,
        quantization: str = "",
        share: Share = whole,
    ) -> "MemoryPlan":
        """Compute the plan. device: free bytes of the GPU. quantization: the weights' format, if
        the config's folder has none. model, share: see weights_of(). Raises WeightsError and
        ModelConfigError if the folder cannot be read."""
        config = config.of_a_gpu().drafting(model.draft_layers, on_gpu=True)
        layout = layout_of(model, config)
        rotary = family_of(model).gpu_sizes(model).rotary()
        weights = weights_of(model, config, quantization, share).total
        tower = TowerMemory.of(config)
        rest = device - weights - rotary - tower.total - _CONTEXT_BYTES

        def is_too_large(slabs: int) -> bool:
            beside = _Beside.of(model, config, layout, role, slabs).total
            return slabs * layout.slab_bytes > (rest - beside) * (1 - _HEADROOM)

        # The memory needed beside the slabs never falls as slabs grow, so a bisection finds the
        # limit.
        most = max(rest // layout.slab_bytes, 0)
        fitting = bisect_left(range(1, most + 1), True, key=is_too_large)
        slabs = (
            fitting
            if isinstance(config.arena_mib, Auto)
            else config.arena_mib * MIB // layout.slab_bytes
        )
        beside = _Beside.of(model, config, layout, role, slabs)
        return MemoryPlan(
            layout=layout,
            working_slots=role.working_slots,
            device=device,
            weights=weights,
            rotary=rotary,
            workspace=beside.workspace,
            gathered=beside.gathered,
            graphs=beside.graphs,
            context=_CONTEXT_BYTES,
            arena=slabs * layout.slab_bytes,
            fitting_arena=fitting * layout.slab_bytes,
            max_batch=beside.max_batch,
            context_tokens=beside.context_tokens,
            tower=tower,
        )

    @property
    def fits(self) -> bool:
        return 0 < self.arena <= self.fitting_arena

    @property
    def beside(self) -> int:
        """Return the bytes of everything except the arena."""
        parts = (self.weights, self.rotary, self.workspace, self.gathered, self.graphs)
        return sum(parts) + self.context + self.tower.total

    def slabs(self, arena: int) -> int:
        return arena // self.layout.slab_bytes

    def pages(self, arena: int) -> int:
        """Return the number of pages in an arena of `arena` bytes if every slab holds pages."""
        return self.slabs(arena) * self.layout.pages_per_slab

    def requests(self, arena: int, tokens: int) -> int:
        """Return the number of concurrent requests in an arena of `arena` bytes, each with `tokens`
        tokens and no shared pages."""
        pages = -(-tokens // PAGE_TOKENS)
        return _requests(self.layout, self.slabs(arena), self.working_slots, pages)


@dataclass(frozen=True)
class _Beside:
    """The sizes depending on the arena's size; bytes and names as in MemoryPlan."""

    max_batch: int
    context_tokens: int
    workspace: int
    gathered: int
    graphs: int

    @staticmethod
    def of(
        model: ModelConfig, config: EngineConfig, layout: CacheLayout, role: Role, slabs: int
    ) -> "_Beside":
        batch = batch_of_a_gpu(config, layout, role, slabs)
        tokens = min(model.max_position, slabs * layout.pages_per_slab * PAGE_TOKENS)
        dtype, sizes = getattr(torch, config.compute_dtype), family_of(model).gpu_sizes(model)
        # Each graph leaves a step's logits in a place of its own.
        kept_logits = sum(padded_sizes(batch)) * model.vocab * dtype.itemsize
        # A prompt's rest is computed behind its load, beside the engine's own forward.
        beside = int(config.host_cache_gib is not None)
        return _Beside(
            max_batch=batch,
            context_tokens=tokens,
            workspace=_workspace(model, sizes, config, batch)
            + beside * sizes.activations(config.prefill_chunk_tokens, dtype),
            gathered=sizes.gathered(tokens, dtype, converted=config.stored_kv == FP8_ROWS)
            * (1 + beside),
            graphs=_GRAPHS_BYTES
            + sizes.activations(batch, dtype)
            + kept_logits
            + _drafts(model, sizes, config, role, batch),
        )

    @property
    def total(self) -> int:
        return self.workspace + self.gathered + self.graphs


def batch_of_a_gpu(config: EngineConfig, layout: CacheLayout, role: Role, slabs: int) -> int:
    """Return the largest number of requests in one forward on a GPU. Without a configured number,
    each request gets a few pages and its working slots in an arena of `slabs` slabs."""
    if not isinstance(config.max_batch, Auto):
        return config.max_batch
    found = _requests(layout, slabs, role.working_slots, _PAGES_OF_A_REQUEST)
    return min(max(found, 1), _MOST_REQUESTS)


def _requests(layout: CacheLayout, slabs: int, working_slots: int, pages: int) -> int:
    # A slab's pages may belong to several requests, so a slot counts as all pages of a slab.
    return slabs * layout.pages_per_slab // (pages + working_slots * layout.pages_per_slab)


def _workspace(model: ModelConfig, sizes: GpuSizes, config: EngineConfig, batch: int) -> int:
    """Return the bytes of a prompt chunk's activations and of logits. Every sampled row has logits
    and scores, with copies for rows sampled outside of the graph (runner/eager_sampler.py). The
    logits of prompt rows scored at a time are added."""
    logits = 4 * model.vocab * batch * 4
    scored = SCORED_ROWS * model.vocab * SCORED_LOGIT_BYTES
    dtype = getattr(torch, config.compute_dtype)
    parts = sizes.attention_parts(batch * _spans(config))
    return sizes.activations(config.prefill_chunk_tokens, dtype) + logits + scored + parts


def _spans(config: EngineConfig) -> int:
    """Return the most spans of a row; 0 if keys are not divided by spans."""
    return SPANS.most_spans if config.divided_keys is AttentionSplit.SPANS else 0


def _drafts(
    model: ModelConfig, sizes: GpuSizes, config: EngineConfig, role: Role, batch: int
) -> int:
    """Return the bytes for graphs of rows with drafts: graphs, activations, logits and a copy,
    parts of attention, and data of each token kept for folds (storing states after accepted
    drafts). A prefill node has none."""
    if not config.drafts_on_gpu or role is Role.PREFILL:
        return 0
    width, rows = config.drafts_on_gpu + 1, min(batch, MOST_ROWS)
    dtype: torch.dtype = getattr(torch, config.compute_dtype)
    tokens = rows * width
    logits = 2 * tokens * model.vocab * dtype.itemsize
    attention = sizes.attention_parts((_SHARES + rows * (1 + _spans(config))) * width)
    kept = tokens * sizes.kept_token(dtype)
    found = _GRAPHS_BYTES + sizes.activations(tokens, dtype) + logits + attention + kept
    return found + (_guesses(model, sizes, dtype, rows) if config.drafts_by_layer else 0)


def _guesses(model: ModelConfig, sizes: GpuSizes, dtype: torch.dtype, rows: int) -> int:
    """Return the bytes for the draft layer's graphs: graphs, activations, logits and parts of
    attention. They include the part of the head used to sample drafts (model/drafts.py) and the
    hidden states."""
    head = min(model.vocab, FIRST_IDS) * model.hidden * dtype.itemsize
    logits = 2 * rows * model.vocab * dtype.itemsize
    attention = sizes.attention_parts(_SHARES + rows)
    found = _GRAPHS_BYTES + sizes.activations(rows, dtype) + head + logits + attention
    return found + rows * sizes.carried_row(dtype)


CPU_ARENA_MIB = 512
CPU_MAX_BATCH = 64
_FEWEST_SLABS = 4


def layout_of(model: ModelConfig, config: EngineConfig) -> CacheLayout:
    """Return the layout of the model's cache in the config's dtypes."""
    return model.cache_layout(config.stored_kv, config.compute_dtype, config.ssm_dtype)


def arena_slabs(
    config: EngineConfig, model: ModelConfig, role: Role, free: int | None, share: Share = whole
) -> int:
    """Return the number of slabs (fixed-size parts) of an engine's arena, `auto` resolved. Pure.

    free: free bytes of the GPU before this process uses any; None: the engine is on a CPU. model,
    share: see weights_of(). Raises EngineConfigError if the arena is too small for any request.
    """
    layout = layout_of(model, config)
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
    """Return the largest number of requests in one forward of an engine with an arena of `slabs`
    slabs. On a CPU it is the setting, or CPU_MAX_BATCH for `auto`."""
    if on_gpu:
        return batch_of_a_gpu(config, layout, role, slabs)
    return CPU_MAX_BATCH if isinstance(config.max_batch, Auto) else config.max_batch
