"""The family's model on a GPU: prompts, decode steps, verification of drafts and guesses, over
Triton's operators.

A step's operators are bound to buffers of fixed address, so a CUDA graph may capture every call.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from tasuki.model.attention_split import AttentionSplit
from tasuki.model.backends.base import StepOperators
from tasuki.model.backends.triton_backend import TritonBackend
from tasuki.model.backends.triton_decode import DecodeScratch, groups_of
from tasuki.model.backends.triton_entries import fold_carry
from tasuki.model.backends.triton_verify import VerifyScratch
from tasuki.model.config import DeltaNetConfig
from tasuki.model.drafts import DraftHead
from tasuki.model.forward import (
    DecodeBatch,
    FoldRows,
    Gather,
    LayerHooks,
    NullHooks,
    VerifyBatch,
    one_rank,
)
from tasuki.model.ops.attention.long_context import block_rows_of
from tasuki.model.ops.attention.spans.groups import SpanGroups
from tasuki.model.ops.gdn.verify.fold import gdn_fold
from tasuki.model.protocol import Guess
from tasuki.pycache.arena import Arena
from tasuki.utils.signatures import Notice

from .stack import Qwen35Forward, Qwen35Model
from .weights import ModelWeights


class Qwen35OnGpu(Qwen35Model):
    """`GpuModel` of this family."""

    def __init__(
        self,
        config: DeltaNetConfig,
        weights: ModelWeights,
        backend: TritonBackend,
        gather: Gather = one_rank,
        drafts: DraftHead | None = None,
    ) -> None:
        super().__init__(config, weights, backend, gather, drafts)
        self._triton = backend

    def _on_device(self, indices: Tensor) -> Tensor:
        return indices.pin_memory().to(self.weights.device, non_blocking=True)

    @property
    def sees_pictures(self) -> bool:
        return self._triton.sees_pictures

    @property
    def block_rows(self) -> int:
        return block_rows_of(self.config, self.weights.device)

    @property
    def tile_lengths(self) -> tuple[int, ...]:
        return self._triton.tile_lengths

    @property
    def picture_row(self) -> Tensor:
        return self.weights.embedding[:1]

    def prepare(self) -> None:
        self._triton.prepare()

    def beside(self) -> "tuple[Qwen35OnGpu, Notice]":
        # The model needs a back end of its own, because forwards of one back end share streams.
        backend = self._triton.beside()
        return Qwen35OnGpu(self.config, self.weights, backend), backend.prepare

    def decode_steps(
        self, rows: int, split: AttentionSplit = AttentionSplit.SHARES
    ) -> "Qwen35DecodeSteps":
        return Qwen35DecodeSteps(self, self._triton, self._triton.scratch(rows, split))

    def verify_steps(
        self, rows: int, tokens: int, split: AttentionSplit = AttentionSplit.SHARES
    ) -> "Qwen35VerifySteps":
        scratch = self._triton.verify_scratch(rows, tokens, split)
        return Qwen35VerifySteps(self, self._triton, scratch)


@dataclass(frozen=True)
class Qwen35Step:
    """`StepResult` of this family, see Qwen35Forward."""

    model: Qwen35Model
    branch: Tensor
    residual: Tensor
    operators: StepOperators

    def own_head(self) -> Tensor:
        return self.model.own_head(self.branch, self.residual, self.operators)


@dataclass(frozen=True)
class Qwen35DecodeSteps:
    """`DecodeSteps` of this family."""

    model: Qwen35OnGpu
    backend: TritonBackend
    scratch: DecodeScratch

    @property
    def groups(self) -> SpanGroups | None:
        return groups_of(self.scratch.spans)

    def run(self, tokens: Tensor, batch: DecodeBatch, arena: Arena) -> Qwen35Step:
        operators = self.backend.bind_decode(batch, self.scratch)
        branch, residual = self.model.step(tokens, operators, arena)
        return Qwen35Step(self.model, branch, residual, operators)

    def guesses(self, batch: DecodeBatch, counts: Tensor, arena: Arena) -> Guess:
        operators = self.backend.bind_decode(batch, self.scratch).drafts(counts)
        return lambda tokens, hidden: self.model.guess(tokens, hidden, operators, arena)


@dataclass(frozen=True)
class Qwen35VerifySteps:
    """`VerifySteps` of this family."""

    model: Qwen35OnGpu
    backend: TritonBackend
    scratch: VerifyScratch

    @property
    def groups(self) -> SpanGroups | None:
        return groups_of(self.scratch.spans)

    @property
    def tokens(self) -> int:
        return self.scratch.kept.tokens

    @property
    def hidden(self) -> Tensor | None:
        return self.scratch.hidden

    def run(
        self, tokens: Tensor, batch: VerifyBatch, arena: Arena, hooks: LayerHooks
    ) -> Qwen35Forward:
        operators = self.backend.bind_verify(batch, self.scratch)
        carry = arena.views("carry")[0] if arena.layout.draft_layers else None
        operators.fold(arena.views("conv"), carry)
        branch, residual = self.model.layers(tokens, operators, arena, hooks)
        found = Qwen35Forward(self.model, tokens, branch, residual, operators, arena)
        if arena.layout.draft_layers:
            found.keep_entries(NullHooks())
        return found

    @torch.inference_mode()
    def fold(self, turn: int, rows: FoldRows, starts: Tensor, arena: Arena) -> None:
        states = arena.views("conv"), arena.views("ssm")
        gdn_fold(self.scratch.kept.of(turn), self.model.config, *states, rows, starts)
        if self.scratch.hidden is not None:
            fold_carry(self.scratch.hidden, rows, arena.views("carry")[0])
