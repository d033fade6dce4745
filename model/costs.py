"""Costs of a model, as counted by its family: FLOPs of a prefill, and bytes of its weights.

PrefillFlops: FLOPs of a prefill, the unit for the value of a cache hit.

WeightSizes: bytes of a model's weights, and the bytes read by one decode step.

Bytes are counted on weights assembled without memory (meta tensors) from ShapesOnly. So the count
includes every fused layout.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from tasuki.model.weights.matrix import WHOLE, Part
from tasuki.model.weights.source import PlainSource


@dataclass(frozen=True)
class PrefillFlops:
    """FLOPs of a prefill. linear: per token; quadratic: per pair of a token and an earlier one."""

    linear: float
    quadratic: float

    def of(self, tokens: int) -> float:
        """Return the FLOPs of a prefill of `tokens` tokens without a cached prefix."""
        return self.linear * tokens + self.quadratic * tokens * tokens / 2


@dataclass(frozen=True)
class WeightSizes:
    """Sizes of a model's weights in bytes. total: all weights in memory. dense: bytes read by every
    step without drafts, for any batch size. routed: all routed experts together. A token uses
    `chosen` of the `experts` experts. tables: lookup tables beside the weights, in mapped files."""

    total: int
    dense: int
    routed: int
    experts: int
    chosen: int
    tables: int = 0

    def step_bytes(self, tokens: int) -> float:
        """Return the expected weight bytes read by a decode step of `tokens` tokens; bytes read
        twice count once. Experts are assumed to be chosen evenly and independently."""
        if not self.routed:
            return self.dense
        missed: float = (1 - self.chosen / self.experts) ** tokens
        return self.dense + self.routed * (1 - missed)


class ShapesOnly(PlainSource):
    """A weight source with every requested tensor, as a shape without memory (a meta tensor)."""

    def has(self, name: str) -> bool:
        return True

    def read(
        self, name: str, shape: tuple[int, ...], dtype: torch.dtype, part: Part = WHOLE
    ) -> Tensor:
        return torch.empty(shape, dtype=dtype, device="meta")[part]
