"""The draft layer's data stored by a forward, in Triton. Every token has an entry (a key and a
value) in its page. Every stored position has its hidden state in its slot.

In a decode step, each token is the first of its sequence. So the inputs of its entry exist when the
step begins. The entries are computed on another stream, in parallel with the step's layers.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TypeAlias

import torch
from torch import Tensor

from tasuki.model.config import DeltaNetConfig
from tasuki.model.forward import Batch, FoldRows, RowSpan
from tasuki.model.ops.attention.qk_norm_rope_gate import TokenPlaces, k_norm_rope
from tasuki.model.ops.draft.carry import carry_folded, carry_normed
from tasuki.model.ops.draft.entry_inputs import entry_inputs
from tasuki.model.ops.draft.reference import plan_carry
from tasuki.model.ops.norm.rms_norm import rms_norm
from tasuki.model.weights.layers import DraftWeights
from tasuki.model.weights.matrix import Matrix

Product: TypeAlias = Callable[[Tensor, Matrix], Tensor]
"""Function returning x [T, k] times a transposed weight [n, k], without a sum over ranks."""


@dataclass(frozen=True)
class TritonEntries:
    """Base class for storing the draft layer's KV, for prompts and decode steps. read_slots: [B],
    the slot with the hidden state before each sequence's first token, by row of the page table.
    pictures: rows in place of embeddings, in the dtype of these and on the same device."""

    config: DeltaNetConfig
    rotary: Tensor
    places: TokenPlaces
    read_slots: Tensor
    product: Product
    pictures: Sequence[RowSpan] = field(default=(), kw_only=True)

    def normed(self, branch: Tensor, residual: Tensor, norm: Tensor) -> Tensor:
        return rms_norm(branch + residual, norm, self.config.norm_eps)

    def write(
        self,
        tokens: Tensor,
        hidden: Tensor | None,
        embedding: Tensor,
        weights: DraftWeights,
        kv: Tensor,
        carry: Tensor,
    ) -> None:
        config, places = self.config, self.places
        joined = entry_inputs(
            tokens,
            hidden,
            embedding,
            carry,
            places.owners,
            self.read_slots,
            places.rows,
            (weights.embedding_norm, weights.hidden_norm),
            config.norm_eps,
        )
        for span in self.pictures:
            normed = rms_norm(span.rows, weights.embedding_norm, config.norm_eps)
            joined[span.first : span.first + len(normed), : normed.shape[1]] = normed
        mixed = self.product(joined, weights.fc)
        normed = rms_norm(mixed, weights.layer.mixer_norm, config.norm_eps)
        rows = 2 * config.kv_heads * config.head_dim
        projected = self.product(normed, weights.attention.in_proj.last_rows(rows))
        k_norm_rope(projected, weights.attention, config, self.rotary, places, kv)


@dataclass(frozen=True)
class PromptCarry:
    """Slots and rows of the hidden states carried by a forward over prompts, int64 on the device.
    read_slots [B]: slot before each sequence. rows, slots [n]: slots[i] stores the hidden state of
    row rows[i]."""

    read_slots: Tensor
    rows: Tensor
    slots: Tensor

    @staticmethod
    def of(batch: Batch, device: torch.device) -> "PromptCarry":
        """Return the slots and rows of the hidden states stored by a batch. The batch is in host
        memory. The copy to the device is asynchronous."""
        plan = plan_carry(batch.cu_seqlens, batch.read_slots, batch.saves())
        tables = (plan.read_slots, plan.rows, plan.slots)
        packed = torch.cat(tables)
        if device.type == "cuda":
            packed = packed.pin_memory()
        moved = packed.to(device, non_blocking=True)
        return PromptCarry(*torch.split(moved, [len(table) for table in tables]))


@dataclass(frozen=True)
class PromptEntries(TritonEntries):
    """Triton's `EntryOperators` of a forward over prompts: they store the draft layer's KV."""

    carried: PromptCarry

    def carry_over(self, hidden: Tensor, carry: Tensor) -> None:
        carry.index_copy_(0, self.carried.slots, hidden.index_select(0, self.carried.rows))


@dataclass(frozen=True)
class VerifyEntries(TritonEntries):
    """Triton's `EntryOperators` of a verification step. It writes no slot, because acceptance is
    not known yet. kept [B, tokens, width]: receives the tokens' hidden states, for fold_carry()."""

    kept: Tensor

    def carry_over(self, hidden: Tensor, carry: Tensor) -> None:
        self.kept.copy_(hidden.view(self.kept.shape))


def fold_carry(kept: Tensor, folds: FoldRows, carry: Tensor) -> None:
    """Write the hidden state of the last accepted token into each row's slot of `carry`. A row
    without accepted tokens writes nothing. kept [places, tokens, width]: hidden states of the
    tokens verified last."""
    carry_folded(kept, folds.places, folds.counts, carry, folds.write_slots)


@dataclass(frozen=True)
class StepEntries(TritonEntries):
    """Triton's `StepEntries` of base.py: they store the draft layer's KV in a decode step.
    write_slots [B]: slots written by it. side: the stream to compute in parallel with layers."""

    write_slots: Tensor
    side: torch.cuda.Stream

    @contextmanager
    def beside(self) -> Iterator[None]:
        self.side.wait_stream(torch.cuda.current_stream(self.rotary.device))
        with torch.cuda.stream(self.side):
            yield

    def carry_over(self, branch: Tensor, residual: Tensor, norm: Tensor, carry: Tensor) -> None:
        # A slot may be both read and written, and the work on the side stream reads it.
        torch.cuda.current_stream(self.rotary.device).wait_stream(self.side)
        eps = self.config.norm_eps
        carry_normed(branch, residual, norm, eps, carry, self.write_slots, self.places.rows)
