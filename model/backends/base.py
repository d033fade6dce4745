"""Operators of a layer: the interface between the layer stack and the kernels.

A back end is chosen once, when the model is built. It is bound to a `Batch` for every forward. The
resulting operators hold the data shared by all layers of that forward: slots, pages, sequence
boundaries, rotary angles. No call chooses a kernel anew. Arena memory outside the batch's indices
may hold NaN. `project` and `feed_forward` end in the back end's `Reduce`, to add up the ranks'
parts.

The residual stream is passed as (branch, residual), and is their sum. The next norm adds them,
because one kernel can add and normalise. Activations are [T, ...] in the model's dtype.
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
    """Operators of a model's layers, bound to one forward of T tokens."""

    def norm_project(
        self, branch: Tensor | None, residual: Tensor, norm: Tensor, weight: Matrix
    ) -> tuple[Tensor, Tensor]:
        """Return two tensors: the product [T, n] of the normed branch + residual with weight [n,
        hidden] transposed, and the sum branch + residual [T, hidden]. The norm is a
        root-mean-square norm. norm [hidden] float32: its weight as 1 + w. Either input may be
        overwritten."""

    def norm_head(
        self, branch: Tensor | None, residual: Tensor, norm: Tensor, weight: Matrix
    ) -> Tensor:
        """Return the logits [n, vocab] of any rows of the forward: the product of norm_project()
        with the model's head. branch None: the residual alone is normed. It always has the
        precision of `Phase.STEP`, because a prompt's last logits are an answer's first."""

    def project(self, x: Tensor, weight: Matrix) -> Tensor:
        """Return x [T, k] times weight [hidden, k] transposed, summed over ranks: [T, hidden]."""

    def gdn(self, projected: Tensor, weights: GdnWeights, conv: Tensor, ssm: Tensor) -> Tensor:
        """Run one Gated DeltaNet mixer. Return [T, value_heads * value_dim], the input of out_proj.

        projected: [T, q | k | v | z | b | a]. conv: [slots, channels, columns], the layer's
        convolution states. ssm: [slots, value_heads, value_dim, key_dim], its recurrent states.
        Both are read and written at the batch's slots.
        """

    def attention(self, projected: Tensor, weights: AttentionWeights, kv: Tensor) -> Tensor:
        """Run one attention mixer. Return its gated output [T, query_heads * head_dim], the input
        of out_proj.

        projected: [T, query_heads x (q, gate) | k | v]. kv: [pages, kv_heads, 2, page_tokens,
        head_dim], the layer's pages. All keys and values of this forward are written before any is
        read.
        """

    def feed_forward(
        self, branch: Tensor, residual: Tensor, norm: Tensor, weights: MlpWeights | MoeWeights
    ) -> tuple[Tensor, Tensor]:
        """Return two tensors: the feed-forward of the normed branch + residual, summed over ranks,
        and the sum branch + residual. norm: see norm_project(). weights: a dense block or
        experts."""


class BatchOperators(Operators, Protocol):
    """Operators of a forward of sequences with any number of tokens each."""

    def entries(self) -> "EntryOperators":
        """Return the operators storing the draft layer's KV (its entries). REQUIRES: the model's
        config has a draft layer."""


class EntryOperators(Protocol):
    """Operators storing the draft layer's KV (one entry a token) and hidden states, for a forward
    of T tokens."""

    def normed(self, branch: Tensor, residual: Tensor, norm: Tensor) -> Tensor:
        """Return the normed branch + residual, [T, hidden], see norm_project(). Neither input is
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
        """Write the draft layer's key and value of every token into its page. tokens [T]: token
        ids; hidden [T, hidden]: the model's final hidden states. embedding: [vocab, hidden]. kv:
        the draft layer's pages, as for attention(). carry [slots, hidden]: the hidden state before
        a sequence's first token, at its read slot."""

    def carry_over(self, hidden: Tensor, carry: Tensor) -> None:
        """Copy the hidden state at each position with a stored state into the same slot of
        `carry`."""


class StepOperators(Operators, Protocol):
    """Layer operators of a decode step, with one token per sequence."""

    def step_entries(self) -> "StepEntries":
        """Return the operators storing the draft layer's KV (its entries) in this step. REQUIRES:
        the model's config has a draft layer."""


class StepEntries(Protocol):
    """Operators storing the draft layer's KV and hidden states, for a decode step of B tokens."""

    def beside(self) -> AbstractContextManager[None]:
        """Return a context manager. Computations inside it run in parallel with those after it,
        until carry_over() waits for them."""

    def write(
        self,
        tokens: Tensor,
        hidden: None,
        embedding: Tensor,
        weights: DraftWeights,
        kv: Tensor,
        carry: Tensor,
    ) -> None:
        """Write the draft layer's keys and values, see EntryOperators.write(). hidden is None,
        because every token is the first of its sequence in this step."""

    def carry_over(self, branch: Tensor, residual: Tensor, norm: Tensor, carry: Tensor) -> None:
        """Write the normed branch + residual, see norm_project(), into the slots of `carry` written
        by the step. Neither input is changed."""


class DraftOperators(Protocol):
    """Operators of one pass of the draft layer: it drafts one token after each of T rows."""

    def head(self, hidden: Tensor, weight: Matrix) -> Tensor:
        """Return the logits [T, vocab], in the model's dtype, of hidden states [T, hidden] after
        the norm. weight [vocab, hidden]: the head."""

    def join(
        self, tokens: Tensor, before: Tensor, embedding: Tensor, weights: DraftWeights
    ) -> Tensor:
        """Return the draft layer's input [T, hidden]. tokens [T]: token ids; before [T, hidden]:
        the model's final hidden states of the tokens before them; embedding: [vocab, hidden]."""

    def draft(self, x: Tensor, weights: DraftWeights, kv: Tensor) -> Tensor:
        """Run the draft layer on inputs x [T, hidden] and its pages kv. Return its output after its
        last norm, [T, hidden]. The model's head makes logits of this output, and the next pass
        takes it as its hidden state. Keys and values are written first; a query reads only
        positions from 1 on."""


class Backend(Protocol):
    """A factory of layer operators, for forwards of one model on one device."""

    def bind(self, batch: Batch) -> BatchOperators:
        """Return the operators of a batch's forward. All data shared by its layers is prepared
        here."""
