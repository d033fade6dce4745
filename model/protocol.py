"""A model as its runners see it: any family's forwards, without layers or residual stream.

Model: what any device needs. GpuModel: what the runner of GPUs needs beside it, for captured
graphs. A family without kernels gives a Model alone. Logits are in the model's dtype unless a
method says float32. Nothing here knows a family.
"""

from collections.abc import Callable, Mapping
from typing import Protocol, TypeAlias, runtime_checkable

import torch
from torch import Tensor

from tasuki.model.ops.attention.spans.groups import SpanGroups
from tasuki.model.ops.sampling.prompt_scores import HeadOf
from tasuki.model.ops.sampling.slice import Slice
from tasuki.model.weights.layers import Weights
from tasuki.model.weights.matrix import Matrix
from tasuki.pycache.arena import Arena
from tasuki.utils.signatures import Notice

from .attention_split import AttentionSplit
from .config import ModelConfig
from .forward import Batch, DecodeBatch, FoldRows, LayerHooks, VerifyBatch

Guess: TypeAlias = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
"""Function of tokens [T] and of the hidden states before them [T, width], as in
Model.draft_logits(). It returns logits [T, n] for draft_ids, or this rank's part of the vocabulary
without such ids, and the next hidden states [T, width]."""


class Model(Protocol):
    """A model with its weights. A forward is a function of a batch and an arena. Calls on one arena
    come from one thread. REQUIRES: the arena's layout is config.cache_layout(...); the page and
    slot ids of a batch are inside the arena."""

    @property
    def config(self) -> ModelConfig:
        """Return the model's config, of one rank's part if there are several."""

    @property
    def weights(self) -> Weights: ...

    @property
    def draft_ids(self) -> Tensor | None:
        """Return the token ids allowed as drafts, [n] int64, ascending; None: any token."""

    @property
    def draft_rows(self) -> Matrix | None:
        """Return the rows of the head kept for drafts; None: drafts use the whole head."""

    @property
    def own_slice(self) -> Slice | None:
        """Return this rank's part of the vocabulary; None: all of it."""

    def forward(
        self,
        batch: Batch,
        arena: Arena,
        hooks: LayerHooks,
        score: Callable[[HeadOf], None] | None = None,
    ) -> Tensor:
        """Run a batch through the model, and write its pages and slots. Return the logits [B,
        vocab] float32 of each sequence's last token. hooks: called in the order of the layers; a
        draft layer is the last. score: called with a function to compute other rows' logits; None:
        no other rows are needed."""

    def fold(self, batch: Batch, inputs: Mapping[int, Tensor], arena: Arena) -> None:
        """Advance and store the states of a batch, for tokens computed before. inputs: by layer,
        the rows received by hooks.mixer_inputs() for these tokens, of every layer with a state."""

    def carried(self, arena: Arena) -> Tensor:
        """Return the hidden state after each slot's last token, [slots, width], as taken by
        draft_logits(). REQUIRES: the arena has a draft layer."""

    def draft_logits(self, hidden: Tensor, batch: Batch, arena: Arena) -> tuple[Tensor, Tensor]:
        """Return the draft layer's prediction after each of the batch's tokens: (logits [T, vocab]
        float32, hidden states [T, width]). hidden [T, width]: hidden state of the token before each
        token. For a sampled token it is the draft layer's mixer_inputs() of a forward, for a draft
        it comes from this method. Writes the draft layer's pages of the tokens. REQUIRES: every
        token is at position 1 or later; the pages of earlier tokens are written. Raises
        NoDraftLayer."""

    def whole(self, logits: Tensor) -> Tensor:
        """Return the logits of the whole vocabulary, given this rank's part. All ranks call it
        together."""

    def beside(self) -> "tuple[Model, Notice]":
        """Return a model with the same weights, for forwards in parallel with this one's. Call the
        second value on these forwards' thread before the first of them."""


class StepResult(Protocol):
    """The result of a step: all its layers have run, or are captured."""

    def own_head(self) -> Tensor:
        """Return the logits of every row, for this rank's part of the vocabulary."""


class ForwardResult(StepResult, Protocol):
    """The result of a batch: all its layers have run."""

    def head(self, rows: Tensor) -> Tensor:
        """Return the logits [n, vocab] after these rows of the forward. rows: [n] int64."""

    def keep_entries(self, hooks: LayerHooks) -> None:
        """Store the draft layer's pages and slots for the forward's tokens. REQUIRES: the arena has
        a draft layer. Raises NoDraftLayer."""


class DecodeSteps(Protocol):
    """Decode steps with scratch memory of their own. All its calls use one stream. A CUDA graph may
    capture them."""

    @property
    def groups(self) -> SpanGroups | None:
        """Return the memory for each step's plan of rows that share pages; None without spans."""

    def run(self, tokens: Tensor, batch: DecodeBatch, arena: Arena) -> StepResult:
        """Run one token [B] of each sequence through all layers, and write pages and slots, a draft
        layer's too."""

    def guesses(self, batch: DecodeBatch, counts: Tensor, arena: Arena) -> Guess:
        """Return the draft layer's function for these rows. counts: int32 ones, at least one for
        each row."""


class VerifySteps(Protocol):
    """Steps that verify drafts, with memory for their inputs until their folds. All its calls use
    one stream. A CUDA graph may capture run()."""

    @property
    def tokens(self) -> int:
        """Return the most tokens of a row."""

    @property
    def groups(self) -> SpanGroups | None:
        """Return the memory for each step's plan, as in DecodeSteps."""

    @property
    def hidden(self) -> Tensor | None:
        """Return the hidden states of the last step's tokens, [rows, tokens, width]; None without a
        draft layer."""

    def run(
        self, tokens: Tensor, batch: VerifyBatch, arena: Arena, hooks: LayerHooks
    ) -> StepResult:
        """Store the states requested by the batch's folds. Then run tokens [B * T] through all
        layers. Pages are written, slots are not."""

    def fold(self, turn: int, rows: FoldRows, starts: Tensor, arena: Arena) -> None:
        """Store the states after the accepted tokens of the last step. turn: index, 0 or 1, of the
        buffer with its inputs. starts: [n] int32, tokens before the accepted ones in each row's
        sequence."""


@runtime_checkable
class GpuModel(Model, Protocol):
    """A model whose steps run as CUDA graphs."""

    @property
    def sees_pictures(self) -> bool:
        """Return true if forwards may have rows of pictures, and three rotary positions a token."""

    @property
    def block_rows(self) -> int:
        """Return the rows of a long prompt's block, for warming up."""

    @property
    def tile_lengths(self) -> tuple[int, ...]:
        """Return the numbers of tokens from which on prompts' products have other tiles, for
        warming up; empty: the engine's own lengths reach all."""

    @property
    def picture_row(self) -> Tensor:
        """Return one row in place of an embedding, [1, hidden], for warming up."""

    def prepare(self) -> None:
        """Prepare libraries for every possible context size. Call it once, on the thread of the
        forwards."""

    def run(self, batch: Batch, arena: Arena, hooks: LayerHooks) -> ForwardResult:
        """Run a batch through all layers."""

    def decode_steps(self, rows: int, split: AttentionSplit = AttentionSplit.SHARES) -> DecodeSteps:
        """Return decode steps of up to `rows` sequences. split: division of their keys; guesses
        have shares."""

    def verify_steps(
        self, rows: int, tokens: int, split: AttentionSplit = AttentionSplit.SHARES
    ) -> VerifySteps:
        """Return steps of up to `rows` sequences with up to `tokens` tokens each. split: division
        of their keys."""


class GpuSizes(Protocol):
    """The memory of a family's kernels on a GPU, in bytes, beside weights and arena. Pure."""

    def rotary(self) -> int:
        """Return the bytes of rotary angles."""

    def gathered(self, tokens: int, dtype: torch.dtype, *, converted: bool) -> int:
        """Return the bytes for what a prompt of `tokens` tokens gathers from its pages. converted:
        pages hold FP8 rows."""

    def activations(self, tokens: int, dtype: torch.dtype) -> int:
        """Return the bytes of activations for `tokens` tokens: the residual stream, its norm and
        the widest block's concurrent tensors."""

    def attention_parts(self, rows: int) -> int:
        """Return the bytes of partial attention results of `rows` rows."""

    def carried_row(self, dtype: torch.dtype) -> int:
        """Return the bytes of a token's hidden state for the draft layer; 0 without one."""

    def kept_token(self, dtype: torch.dtype) -> int:
        """Return the bytes kept for each verified token until its fold."""
