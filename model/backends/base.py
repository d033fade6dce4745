"""Operators of a layer: the interface between the layer stack and the kernels.

A back end is chosen once, when the model is built. It is bound to a `Batch` for every forward. The
resulting operators hold the data shared by all layers of that forward: slots, pages, cuts, angles.
Nothing is dispatched per call. Memory outside the batch's indices may hold NaN. `project` and
`feed_forward` end in the back end's `Reduce`. There the ranks add up their parts.

The residual stream is passed as (branch, residual), and is their sum. The next norm adds them,
because a kernel can do both at once. Activations are [T, ...] in the model's dtype.
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
    """Operators of one forward of T tokens."""

    def norm_project(
        self, branch: Tensor | None, residual: Tensor, norm: Tensor, weight: Matrix
    ) -> tuple[Tensor, Tensor]:
        """Return (norm of branch + residual, times weight [n, hidden] transposed: [T, n]; the sum).
        The norm is a root-mean-square norm; norm [hidden] float32, 1 + w. Either input may be
        overwritten."""

    def norm_head(
        self, branch: Tensor | None, residual: Tensor, norm: Tensor, weight: Matrix
    ) -> Tensor:
        """Return norm_project's product alone, for any rows of the forward: logits [n, vocab]. A
        prompt's last logits are an answer's first. So all are computed as `Phase.STEP`."""

    def project(self, x: Tensor, weight: Matrix) -> Tensor:
        """Return x [T, k] times weight [hidden, k] transposed, summed over ranks: [T, hidden]."""

    def gdn(self, projected: Tensor, weights: GdnWeights, conv: Tensor, ssm: Tensor) -> Tensor:
        """Return [T, value_heads * value_dim], the input of out_proj.

        projected: [T, q | k | v | z | b | a]. conv: [slots, channels, columns] of one layer. ssm:
        [slots, value_heads, value_dim, key_dim] of one layer. Both are read and written by slot.
        """

    def attention(self, projected: Tensor, weights: AttentionWeights, kv: Tensor) -> Tensor:
        """Return [T, query_heads * head_dim], gated, the input of out_proj.

        projected [T, query_heads x (q, gate) | k | v]; kv [pages, kv_heads, 2, page_tokens,
        head_dim] of one layer. All keys and values of this forward are written before any is read.
        """

    def feed_forward(
        self, branch: Tensor, residual: Tensor, norm: Tensor, weights: MlpWeights | MoeWeights
    ) -> tuple[Tensor, Tensor]:
        """Return (feed-forward of the norm of branch + residual, summed over ranks; branch +
        residual). norm as for norm_project."""


class BatchOperators(Operators, Protocol):
    """Operators of sequences with runs of any lengths."""

    def entries(self) -> "EntryOperators":
        """Return the draft layer's entries. REQUIRES: the model's config has a draft layer."""


class EntryOperators(Protocol):
    """Operators of a forward of T tokens, to store the draft layer's entries."""

    def normed(self, branch: Tensor, residual: Tensor, norm: Tensor) -> Tensor:
        """Return the norm of branch + residual, [T, hidden], as for norm_project; neither is
        changed."""

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
        final hidden states; kv as for attention(); carry [slots, hidden]. A sequence's read slot
        has the hidden state before its first token."""

    def carry_over(self, hidden: Tensor, carry: Tensor) -> None:
        """Store the hidden state at each position with a stored state, in the same slot."""


class StepOperators(Operators, Protocol):
    """Operators of a decode step: one token of each sequence."""

    def step_entries(self) -> "StepEntries":
        """Return the draft layer's entries. REQUIRES: the model's config has a draft layer."""


class StepEntries(Protocol):
    """Operators of a decode step of B tokens, to store the draft layer's entries."""

    def beside(self) -> AbstractContextManager[None]:
        """Return a context manager. Its computations run in parallel with the following ones, until
        carry_over()."""

    def write(
        self,
        tokens: Tensor,
        hidden: None,
        embedding: Tensor,
        weights: DraftWeights,
        kv: Tensor,
        carry: Tensor,
    ) -> None:
        """Write entries as in EntryOperators. Every token is the first of its sequence."""

    def carry_over(self, branch: Tensor, residual: Tensor, norm: Tensor, carry: Tensor) -> None:
        """Write the norm of branch + residual, as in norm_project, into the slots written by the
        step. Neither input is changed."""


class DraftOperators(Protocol):
    """Operators of the draft layer's guess, for one token after each of T rows."""

    def head(self, hidden: Tensor, weight: Matrix) -> Tensor:
        """Return the logits [T, vocab], in the model's dtype, of normed hidden states."""

    def join(
        self, tokens: Tensor, before: Tensor, embedding: Tensor, weights: DraftWeights
    ) -> Tensor:
        """Return the layer's input [T, hidden] for tokens [T] and the model's final hidden states
        of the tokens before them, [T, hidden]. embedding [vocab, hidden]."""

    def draft(self, x: Tensor, weights: DraftWeights, kv: Tensor) -> Tensor:
        """Return the layer's output after its last norm, [T, hidden], for inputs [T, hidden]. The
        model's head makes logits of it, and the layer its next input. Keys and values are written
        first; a query sees those from position 1 on."""


class Backend(Protocol):
    """Maker of operators for forwards of one model on one device."""

    def bind(self, batch: Batch) -> BatchOperators:
        """Plan the forward of a batch: all data shared by its layers."""
