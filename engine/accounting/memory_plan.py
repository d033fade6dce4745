"""What of a GPU's memory goes where, before anything is allocated.

Weights, slabs, slots and pages are exact: they come from the same shapes that allocate them.
Workspace is the widest block's activations for one chunk; graphs and the CUDA context are
allowances, checked against a GPU in docs/kernels.md. Pure.
"""

from dataclasses import dataclass

import torch

from tasuki.engine.config import EngineConfig
from tasuki.engine.role import Role
from tasuki.model.config import DenseShape, ModelConfig
from tasuki.model.weights.weight_sizes import WeightSizes
from tasuki.pycache.layout import PAGE_TOKENS, CacheLayout, itemsize

MIB = 2**20
# Context, loaded kernels and cuBLAS workspaces; then what the driver keeps of each captured graph.
_CONTEXT_BYTES = 1280 * MIB
_GRAPHS_BYTES = 512 * MIB
# Of what remains, so that fragmentation of the caching allocator does not end a server.
_HEADROOM = 0.02


@dataclass(frozen=True)
class MemoryPlan:
    """Bytes, where not said otherwise. device: all memory of the GPU. arena: as configured.

    fitting_arena is the largest arena beside everything else, in whole slabs; 0 where not even the
    weights fit.
    """

    layout: CacheLayout
    working_slots: int
    device: int
    weights: int
    workspace: int
    graphs: int
    context: int
    arena: int
    fitting_arena: int

    @staticmethod
    def of(model: ModelConfig, config: EngineConfig, device: int, role: Role) -> "MemoryPlan":
        layout = model.cache_layout(config.dtype, config.dtype, config.ssm_dtype)
        weights = WeightSizes.of(model, getattr(torch, config.dtype)).total
        workspace = _workspace(model, config)
        graphs = _GRAPHS_BYTES + _activations(model, config.max_batch, config.dtype)
        rest = device - weights - workspace - graphs - _CONTEXT_BYTES
        fitting = max(0, int(rest * (1 - _HEADROOM)) // layout.slab_bytes)
        return MemoryPlan(
            layout=layout,
            working_slots=role.working_slots,
            device=device,
            weights=weights,
            workspace=workspace,
            graphs=graphs,
            context=_CONTEXT_BYTES,
            arena=config.arena_mib * MIB // layout.slab_bytes * layout.slab_bytes,
            fitting_arena=fitting * layout.slab_bytes,
        )

    @property
    def fits(self) -> bool:
        return self.arena <= self.fitting_arena

    def slabs(self, arena: int) -> int:
        return arena // self.layout.slab_bytes

    def pages(self, arena: int) -> int:
        """Were every slab to hold pages."""
        return self.slabs(arena) * self.layout.pages_per_slab

    def requests(self, arena: int, tokens: int) -> int:
        """Running at a time with that many tokens each, none shared."""
        # A slab's pages may belong to several requests, so a slot counts as a slab's worth of them.
        slots = self.working_slots * self.layout.pages_per_slab
        return self.pages(arena) // (-(-tokens // PAGE_TOKENS) + slots)


def _workspace(model: ModelConfig, config: EngineConfig) -> int:
    """Activations of a prefill chunk, and the logits and scores of every sampled row."""
    logits = 4 * model.vocab * config.max_batch * 4
    return _activations(model, config.prefill_chunk_tokens, config.dtype) + logits


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
