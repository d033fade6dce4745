"""The family's costs: FLOPs of a prefill, bytes of its weights, memory of its kernels on a GPU."""

from dataclasses import dataclass

import torch

from tasuki.model.config import DeltaNetConfig, DenseShape, MoeShape
from tasuki.model.costs import PrefillFlops, WeightSizes
from tasuki.model.layer_kind import LayerKind
from tasuki.model.ops.attention.long_context import gathered_bytes
from tasuki.model.ops.attention.rope import rotary_cache_bytes
from tasuki.model.ops.attention.tile_groups import turned_bytes
from tasuki.model.ops.gdn.verify.kept_inputs import kept_bytes
from tasuki.model.weights.layers import MoeWeights, tensors

from .weights import ModelWeights


def prefill_flops(config: DeltaNetConfig) -> PrefillFlops:
    """Return the FLOPs of a prefill."""
    full = sum(kind.value == "full_attention" for kind in config.layer_kinds)
    gdn = config.layers - full
    queries = config.query_heads * config.head_dim
    values = config.value_heads * config.value_dim
    attention = config.hidden * (3 * queries + 2 * config.kv_heads * config.head_dim)
    mixer = config.hidden * (config.conv_channels + 2 * values + 2 * config.value_heads)
    feed_forward = config.layers * _feed_forward(config)
    products = 2.0 * (full * attention + gdn * mixer + feed_forward)
    delta_rule = 8.0 * gdn * config.value_heads * config.value_dim * config.key_dim
    return PrefillFlops(products + delta_rule, 4.0 * queries * full)


def _feed_forward(config: DeltaNetConfig) -> int:
    shape = config.feed_forward
    if isinstance(shape, DenseShape):
        return 3 * config.hidden * shape.intermediate
    chosen = shape.chosen * shape.intermediate + shape.shared_intermediate
    return config.hidden * (3 * chosen + shape.experts)


def weight_sizes(config: DeltaNetConfig, weights: ModelWeights) -> WeightSizes:
    """Count and return the bytes of a model's weights, which have no memory (meta tensors)."""
    routed = sum(
        layer.mlp.gate_up.nbytes + layer.mlp.down.nbytes
        for layer in weights.layers
        if isinstance(layer.mlp, MoeWeights)
    )
    total = sum(tensor.nbytes for tensor in tensors(weights))
    looked_up = 0 if config.tied else weights.embedding.nbytes
    if config.tied:
        total -= weights.head.nbytes
    dense = total - looked_up - routed - _of_guesses(config, weights)
    shape = config.feed_forward
    experts, chosen = (shape.experts, shape.chosen) if isinstance(shape, MoeShape) else (0, 0)
    return WeightSizes(total, dense, routed, experts, chosen)


def _of_guesses(config: DeltaNetConfig, weights: ModelWeights) -> int:
    """Return the bytes of the draft layer's weights read only to draft a token. Weights read to
    store the layer's own KV are not counted."""
    draft = weights.draft
    if draft is None:
        return 0
    rows = draft.attention.in_proj.last_rows(2 * config.kv_heads * config.head_dim)
    return sum(tensor.nbytes for tensor in tensors(draft)) - draft.fc.nbytes - rows.nbytes


@dataclass(frozen=True)
class Qwen35GpuSizes:
    """`GpuSizes` of one model or of one rank's part."""

    config: DeltaNetConfig

    def rotary(self) -> int:
        return rotary_cache_bytes(self.config, self.config.max_position)

    def gathered(self, tokens: int, dtype: torch.dtype, *, converted: bool) -> int:
        turned = turned_bytes(self.config, tokens, dtype) if converted else 0
        return max(gathered_bytes(self.config, tokens, dtype), turned)

    def activations(self, tokens: int, dtype: torch.dtype) -> int:
        config = self.config
        values = config.value_heads * config.value_dim
        queries = config.query_heads * config.head_dim
        gdn = 2 * config.conv_channels + 6 * values
        attention = 2 * queries + 2 * config.kv_heads * config.head_dim + 3 * queries
        width = 3 * config.hidden + max(gdn, attention, _feed_forward_width(config))
        return tokens * width * dtype.itemsize

    def attention_parts(self, rows: int) -> int:
        return 4 * rows * self.config.query_heads * self.config.head_dim

    def carried_row(self, dtype: torch.dtype) -> int:
        return self.config.hidden * dtype.itemsize if self.config.draft_layers else 0

    def kept_token(self, dtype: torch.dtype) -> int:
        config = self.config
        layers = config.layer_kinds.count(LayerKind.GDN)
        # A step's rows and those of the step before are kept.
        return 2 * kept_bytes(config, layers, dtype.itemsize) + self.carried_row(dtype)


def _feed_forward_width(config: DeltaNetConfig) -> int:
    shape = config.feed_forward
    if isinstance(shape, DenseShape):
        return 3 * shape.intermediate
    routed = shape.chosen * (3 * shape.intermediate + 2 * config.hidden)
    return routed + 3 * shape.shared_intermediate
