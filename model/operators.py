"""What a layer calls between its projections: the seam between the layer stack and the kernels.

A back end is chosen once, when the model is built. For every forward it is bound to a `Batch`, and
the operators that come out hold what all layers of that forward share: slots, pages, cuts, angles.
Nothing is dispatched per call. Memory that no index of the batch points at may hold NaN.
"""

from typing import Protocol

from torch import Tensor

from .batch import Batch
from .weights import AttentionWeights, GdnWeights, MlpWeights, MoeWeights


class Operators(Protocol):
    """One forward of T tokens. Activations are in the model's dtype."""

    def norm(self, x: Tensor, weight: Tensor) -> Tensor:
        """Root-mean-square norm of x [T, hidden]; weight [hidden] float32, 1 + w."""

    def add_norm(self, branch: Tensor, residual: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        """(norm of the sum, the sum), both [T, hidden]; `residual` may be overwritten."""

    def gdn(self, projected: Tensor, weights: GdnWeights, conv: Tensor, ssm: Tensor) -> Tensor:
        """[T, value_heads * value_dim], the input of out_proj.

        projected [T, q | k | v | z | b | a]; conv [slots, channels, columns] and ssm [slots,
        value_heads, value_dim, key_dim] of one layer, read and written by slot.
        """

    def attention(self, projected: Tensor, weights: AttentionWeights, kv: Tensor) -> Tensor:
        """[T, query_heads * head_dim], gated, the input of out_proj.

        projected [T, query_heads x (q, gate) | k | v]; kv [pages, 2, page_tokens, kv_heads,
        head_dim] of one layer: this forward's keys and values are written before any is read.
        """

    def feed_forward(self, x: Tensor, weights: MlpWeights | MoeWeights) -> Tensor:
        """x and result [T, hidden]."""


class Backend(Protocol):
    """Makes operators for forwards of one model on one device."""

    def bind(self, batch: Batch) -> Operators:
        """Plan the forward of a batch: all that its layers share."""
