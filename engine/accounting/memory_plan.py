"""What of a GPU's memory goes where, before anything is allocated.

Weights, slabs, slots and pages are exact: they come from the same shapes that allocate them, and so
are the angles' table and the keys and values that long prompts gather. The rest of the workspace is
the widest block's activations for one chunk; graphs and the CUDA context are allowances, checked
against a GPU in docs/kernels.md. Pure.
"""

from bisect import bisect_left
from dataclasses import dataclass

import torch

from tasuki.engine.config import EngineConfig
from tasuki.engine.role import Role
from tasuki.engine.runner.padded_sizes import padded_sizes
from tasuki.engine.runner.verify.token_rows import MOST_ROWS
from tasuki.model.config import DenseShape, ModelConfig
from tasuki.model.draft_vocabulary import FIRST_IDS
from tasuki.model.ops.attention.long_context import gathered_bytes
from tasuki.model.ops.attention.rope import rotary_cache_bytes
from tasuki.model.ops.attention.tile_groups import turned_bytes
from tasuki.model.ops.gdn.verify.kept_inputs import kept_bytes
from tasuki.model.ops.sampling.prompt_scores import SCORED_LOGIT_BYTES, SCORED_ROWS
from tasuki.pycache.layout import FP8_ROWS, PAGE_TOKENS, CacheLayout, itemsize
from tasuki.utils.config.auto import Auto

from .stored_weights import Share, weights_of, whole

MIB = 2**20
# Context, loaded kernels and cuBLAS workspaces; then what the driver keeps of each captured graph.
_CONTEXT_BYTES = 1280 * MIB
_GRAPHS_BYTES = 512 * MIB
# Of what remains, so that fragmentation of the caching allocator does not end a server.
_HEADROOM = 0.02
_SHARES = 2 * 160
"""Of attention's parts at most: two for each of a GPU's multiprocessors."""
_MOST_REQUESTS = 256
"""Of a forward where `max_batch` is auto: each more has its logits and rows kept ready."""
_PAGES_OF_A_REQUEST = 4
"""At least, beside its working slots: one with fewer hardly profits from a batch."""


@dataclass(frozen=True)
class MemoryPlan:
    """Bytes, where not said otherwise. device: memory of the GPU that is free before anything of
    ours is there. arena: as configured, or all that fits. max_batch: requests in one forward, as
    configured or worked out. context_tokens: of the longest context of model and arena.

    fitting_arena is the largest arena beside everything else, in whole slabs; 0 where not even the
    weights fit.
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

    @staticmethod
    def of(
        model: ModelConfig,
        config: EngineConfig,
        device: int,
        role: Role,
        quantization: str = "",
        share: Share = whole,
    ) -> "MemoryPlan":
        """quantization: of the weights, where config names no folder that says so. model, share: as
        of weights_of(). Raises WeightsError and ModelConfigError where that folder cannot be
        read."""
        config = config.of_a_gpu().drafting(model.draft_layers, on_gpu=True)
        layout = model.cache_layout(config.stored_kv, config.compute_dtype, config.ssm_dtype)
        rotary = rotary_cache_bytes(model, model.max_position)
        weights = weights_of(model, config, quantization, share).total
        rest = device - weights - rotary - _CONTEXT_BYTES

        def is_too_large(slabs: int) -> bool:
            beside = _Beside.of(model, config, layout, role, slabs).total
            return slabs * layout.slab_bytes > (rest - beside) * (1 - _HEADROOM)

        # More slabs never have less beside them, so that there is one number from which none fits.
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
        )

    @property
    def fits(self) -> bool:
        return 0 < self.arena <= self.fitting_arena

    @property
    def beside(self) -> int:
        """All but the arena."""
        parts = (self.weights, self.rotary, self.workspace, self.gathered, self.graphs)
        return sum(parts) + self.context

    def slabs(self, arena: int) -> int:
        return arena // self.layout.slab_bytes

    def pages(self, arena: int) -> int:
        """Were every slab to hold pages."""
        return self.slabs(arena) * self.layout.pages_per_slab

    def requests(self, arena: int, tokens: int) -> int:
        """Running at a time with that many tokens each, none shared."""
        pages = -(-tokens // PAGE_TOKENS)
        return _requests(self.layout, self.slabs(arena), self.working_slots, pages)


@dataclass(frozen=True)
class _Beside:
    """What depends on the arena's size, and what comes from that; bytes as in MemoryPlan."""

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
        dtype = getattr(torch, config.compute_dtype)
        # A step's logits stay where its graph left them, each graph's in a place of its own.
        kept_logits = sum(padded_sizes(batch)) * model.vocab * dtype.itemsize
        # A prompt's rest is computed behind its load, beside the engine's own forward.
        beside = int(config.host_cache_gib is not None)
        return _Beside(
            max_batch=batch,
            context_tokens=tokens,
            workspace=_workspace(model, config, batch)
            + beside * _activations(model, config.prefill_chunk_tokens, config.compute_dtype),
            gathered=_gathered(model, config, tokens) * (1 + beside),
            graphs=_GRAPHS_BYTES
            + _activations(model, batch, config.compute_dtype)
            + kept_logits
            + _drafts(model, config, layout, role, batch),
        )

    @property
    def total(self) -> int:
        return self.workspace + self.gathered + self.graphs


def batch_of_a_gpu(config: EngineConfig, layout: CacheLayout, role: Role, slabs: int) -> int:
    """Requests in one forward: as configured, else as many as have a few pages and their working
    slots in an arena of so many slabs."""
    if not isinstance(config.max_batch, Auto):
        return config.max_batch
    found = _requests(layout, slabs, role.working_slots, _PAGES_OF_A_REQUEST)
    return min(max(found, 1), _MOST_REQUESTS)


def _requests(layout: CacheLayout, slabs: int, working_slots: int, pages: int) -> int:
    # A slab's pages may belong to several requests, so a slot counts as a slab's worth of them.
    return slabs * layout.pages_per_slab // (pages + working_slots * layout.pages_per_slab)


def _gathered(model: ModelConfig, config: EngineConfig, tokens: int) -> int:
    """Keys and values side by side, and then pages that FP8 rows are turned to, in their place."""
    dtype = getattr(torch, config.compute_dtype)
    turned = turned_bytes(model, tokens, dtype) if config.stored_kv == FP8_ROWS else 0
    return max(gathered_bytes(model, tokens, dtype), turned)


def _workspace(model: ModelConfig, config: EngineConfig, batch: int) -> int:
    """Activations of a prefill chunk, the logits and scores of every sampled row, of which a row
    that is drawn outside of the graph takes copies (runner/eager_sampler.py), and the logits of
    the rows of a prompt that are scored at a time."""
    logits = 4 * model.vocab * batch * 4
    scored = SCORED_ROWS * model.vocab * SCORED_LOGIT_BYTES
    return _activations(model, config.prefill_chunk_tokens, config.compute_dtype) + logits + scored


def _drafts(
    model: ModelConfig, config: EngineConfig, layout: CacheLayout, role: Role, batch: int
) -> int:
    """Of graphs of rows with drafts: the graphs, their activations, the logits and a copy, parts of
    attention, and what is kept of each token for folds (runner/verify). A prefill node has none."""
    if not config.drafts_on_gpu or role is Role.PREFILL:
        return 0
    width, rows, size = (
        config.drafts_on_gpu + 1,
        min(batch, MOST_ROWS),
        itemsize(config.compute_dtype),
    )
    tokens = rows * width
    logits = 2 * tokens * model.vocab * size
    attention = 4 * (_SHARES + rows) * width * model.query_heads * model.head_dim
    # Of a step and the one before.
    kept = tokens * (2 * kept_bytes(model, layout.gdn_layers, size) + layout.carry_bytes)
    activations = _activations(model, tokens, config.compute_dtype)
    found = _GRAPHS_BYTES + activations + logits + attention + kept
    return found + (_guesses(model, config, layout, rows) if config.drafts_by_layer else 0)


def _guesses(model: ModelConfig, config: EngineConfig, layout: CacheLayout, rows: int) -> int:
    """Of the draft layer's graphs, likewise (runner/guesses), and the part of the head that drafts
    are drawn from (model/draft_vocabulary.py)."""
    head = min(model.vocab, FIRST_IDS) * model.hidden * itemsize(config.compute_dtype)
    logits = 2 * rows * model.vocab * itemsize(config.compute_dtype)
    attention = 4 * (_SHARES + rows) * model.query_heads * model.head_dim
    activations = _activations(model, rows, config.compute_dtype)
    return _GRAPHS_BYTES + activations + head + logits + attention + rows * layout.carry_bytes


def _activations(model: ModelConfig, tokens: int, dtype: str) -> int:
    """The residual stream, its norm and the widest block's tensors that live at once."""
    values = model.value_heads * model.value_dim
    queries = model.query_heads * model.head_dim
    gdn = 2 * model.conv_channels + 6 * values
    attention = 2 * queries + 2 * model.kv_heads * model.head_dim + 3 * queries
    width = 3 * model.hidden + max(gdn, attention, _feed_forward_width(model))
    return tokens * width * itemsize(dtype)


def _feed_forward_width(model: ModelConfig) -> int:
    shape = model.feed_forward
    if isinstance(shape, DenseShape):
        return 3 * shape.intermediate
    routed = shape.chosen * (3 * shape.intermediate + 2 * model.hidden)
    return routed + 3 * shape.shared_intermediate
