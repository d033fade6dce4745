"""Costs of a model: FLOPs of a prefill, and bytes of its weights.

PrefillFlops: FLOPs of a prefill, the unit for the value of a cache hit.

WeightSizes: bytes of a model's weights, and the bytes read by one decode step.

Bytes are counted on weights assembled without memory (meta tensors). So the count includes every
fused layout.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from tasuki.model.weights.layers import ModelWeights, MoeWeights, assemble, tensors
from tasuki.model.weights.matrix import WHOLE, Part
from tasuki.model.weights.source import PlainSource, TensorSource

from .config import DenseShape, ModelConfig, MoeShape


@dataclass(frozen=True)
class PrefillFlops:
    """FLOPs of a prefill. linear: FLOPs per token; quadratic: FLOPs per pair of a token and a token
    before it."""

    linear: float
    quadratic: float

    def of(self, tokens: int) -> float:
        """Return the FLOPs of a prefill of `tokens` tokens without a cached prefix."""
        return self.linear * tokens + self.quadratic * tokens * tokens / 2

    @staticmethod
    def for_model(config: ModelConfig) -> "PrefillFlops":
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


def _feed_forward(config: ModelConfig) -> int:
    shape = config.feed_forward
    if isinstance(shape, DenseShape):
        return 3 * config.hidden * shape.intermediate
    chosen = shape.chosen * shape.intermediate + shape.shared_intermediate
    return config.hidden * (3 * chosen + shape.experts)


@dataclass(frozen=True)
class WeightSizes:
    """Sizes of a model's weights in bytes. total: all weights in memory. dense: bytes read by every
    step without drafts, for any batch size. routed: all routed experts together. A token uses
    `chosen` of the `experts` experts."""

    total: int
    dense: int
    routed: int
    experts: int
    chosen: int

    def step_bytes(self, tokens: int) -> float:
        """Return the expected weight bytes read by a decode step of `tokens` tokens; bytes read
        twice count once. Experts are assumed to be chosen evenly and independently."""
        if not self.routed:
            return self.dense
        missed: float = (1 - self.chosen / self.experts) ** tokens
        return self.dense + self.routed * (1 - missed)

    @staticmethod
    def of(
        config: ModelConfig, dtype: torch.dtype, source: TensorSource | None = None
    ) -> "WeightSizes":
        """Count and return the bytes of a model's weights. dtype: of unquantised weights. source:
        shapes of the stored tensors, without memory; None: all weights unquantised. Raises
        WeightsError from the source."""
        weights = assemble(config, source or ShapesOnly(), dtype, "meta")
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


def _of_guesses(config: ModelConfig, weights: ModelWeights) -> int:
    """Return the bytes of the draft layer's weights read only to draft a token. Weights read to
    store the layer's own KV are not counted."""
    draft = weights.draft
    if draft is None:
        return 0
    rows = draft.attention.in_proj.last_rows(2 * config.kv_heads * config.head_dim)
    return sum(tensor.nbytes for tensor in tensors(draft)) - draft.fc.nbytes - rows.nbytes


class ShapesOnly(PlainSource):
    """A weight source with every requested tensor, as a shape without memory (a meta tensor)."""

    def has(self, name: str) -> bool:
        return True

    def read(
        self, name: str, shape: tuple[int, ...], dtype: torch.dtype, part: Part = WHOLE
    ) -> Tensor:
        return torch.empty(shape, dtype=dtype, device="meta")[part]
