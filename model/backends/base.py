"""What a layer is made of: the seam between the layer stack and the kernels.

A back end is chosen once, when the model is built. For every forward it is bound to a `Batch`, and
the operators that come out hold what all layers of that forward share: slots, pages, cuts, angles.
Nothing is dispatched per call. Memory that no index of the batch points at may hold NaN.
`project` and `feed_forward` end in the back end's `Reduce`, where ranks add up their parts.

The residual stream travels as (branch, residual), whose sum it is: the next norm adds them, where a
kernel can do both at once. Activations are [T, ...] in the model's dtype.
"""

from contextlib import AbstractContextManager
from typing import Protocol

from torch import Tensor

from tasuki.model.forward import Batch
from tasuki.model.weights.layers import (
    AttentionWeights,
    DraftWeights,
    GdnWeights,
    MlpWeights,
    MoeWeights,
)
from tasuki.model.weights.matrix import Matrix


class Operators(Protocol):
    """One forward of T tokens."""

    def norm_project(
        self, branch: Tensor | None, residual: Tensor, norm: Tensor, weight: Matrix
    ) -> tuple[Tensor, Tensor]:
        """(root-mean-square norm of branch + residual, times weight [n, hidden] transposed: [T, n];
        the sum). norm [hidden] float32, 1 + w. Either input may be overwritten."""

    def norm_head(
        self, branch: Tensor | None, residual: Tensor, norm: Tensor, weight: Matrix
    ) -> Tensor:
        """norm_project's product alone, of any rows of the forward: logits [n, vocab]. Those of a
        prompt's end are an answer's first, so that all are of `Phase.STEP`."""

    def project(self, x: Tensor, weight: Matrix) -> Tensor:
        """x [T, k] times weight [hidden, k] transposed, summed over ranks: [T, hidden]."""

    def gdn(self, projected: Tensor, weights: GdnWeights, conv: Tensor, ssm: Tensor) -> Tensor:
        """[T, value_heads * value_dim], the input of out_proj.

        projected [T, q | k | v | z | b | a]; conv [slots, channels, columns] and ssm [slots,
        value_heads, value_dim, key_dim] of one layer, read and written by slot.
        """

    def attention(self, projected: Tensor, weights: AttentionWeights, kv: Tensor) -> Tensor:
        """[T, query_heads * head_dim], gated, the input of out_proj.

        projected [T, query_heads x (q, gate) | k | v]; kv [pages, kv_heads, 2, page_tokens,
        head_dim] of one layer: this forward's keys and values are written before any is read.
        """

    def feed_forward(
        self, branch: Tensor, residual: Tensor, norm: Tensor, weights: MlpWeights | MoeWeights
    ) -> tuple[Tensor, Tensor]:
        """(feed-forward of the norm of branch + residual, summed over ranks; branch + residual),
        norm as for norm_project."""


class BatchOperators(Operators, Protocol):
    """Of runs of any lengths."""

    def entries(self) -> "EntryOperators":
        """REQUIRES: the model's config has a draft layer."""


class EntryOperators(Protocol):
    """What a forward of T tokens keeps for the layer that drafts tokens."""

    def normed(self, branch: Tensor, residual: Tensor, norm: Tensor) -> Tensor:
        """[T, hidden]: the norm of branch + residual, as for norm_project; neither is changed."""

    def write(
        self,
        tokens: Tensor,
        hidden: Tensor,
        embedding: Tensor,
        weights: DraftWeights,
        kv: Tensor,
        carry: Tensor,
    ) -> None:
        """Write every token's entry into its page. tokens [T]; hidden [T, hidden]: the model's
        final hidden states; kv as for attention(); carry [slots, hidden]: the state before a
        sequence's first token is that of the slot which it reads."""

    def carry_over(self, hidden: Tensor, carry: Tensor) -> None:
        """Write the hidden state behind every state that the forward stores into its slot."""


class StepOperators(Operators, Protocol):
    """A decode step: one token of each sequence."""

    def step_entries(self) -> "StepEntries":
        """REQUIRES: the model's config has a draft layer."""


class StepEntries(Protocol):
    """What a decode step of B tokens keeps for the layer that drafts tokens."""

    def beside(self) -> AbstractContextManager[None]:
        """What is computed inside runs beside what follows, up to carry_over()."""

    def write(
        self,
        tokens: Tensor,
        hidden: None,
        embedding: Tensor,
        weights: DraftWeights,
        kv: Tensor,
        carry: Tensor,
    ) -> None:
        """As of EntryOperators: every token is its sequence's first."""

    def carry_over(self, branch: Tensor, residual: Tensor, norm: Tensor, carry: Tensor) -> None:
        """Write the norm of branch + residual, as for norm_project, into the slots that the step
        writes; neither is changed."""


class DraftOperators(Protocol):
    """The guess of the layer that drafts tokens, behind one token of each of T rows."""

    def head(self, hidden: Tensor, weight: Matrix) -> Tensor:
        """Logits [T, vocab] in the model's dtype of normed hidden states."""

    def join(
        self, tokens: Tensor, before: Tensor, embedding: Tensor, weights: DraftWeights
    ) -> Tensor:
        """The layer's input [T, hidden] of tokens [T] and the model's final hidden states of the
        tokens before them, [T, hidden]. embedding [vocab, hidden]."""

    def draft(self, x: Tensor, weights: DraftWeights, kv: Tensor) -> Tensor:
        """The layer, behind its last norm, of its inputs [T, hidden]: [T, hidden], which the
        model's head makes logits of, and the layer itself the next input. Keys and values are
        written first; a query sees those from position 1 on."""


class Backend(Protocol):
    """Makes operators for forwards of one model on one device."""

    def bind(self, batch: Batch) -> BatchOperators:
        """Plan the forward of a batch: all that its layers share."""
