"""The operators of a decode step and of a pass of the draft layer in Triton: one token per
sequence.

Every address is fixed. The operators wait for nothing and allocate only through PyTorch, so a CUDA
graph may capture them.

A pass of the draft layer differs from a decode step in its attention only. Its queries do not read
position 0, because no hidden state comes before it. Rows in need of no further draft write nothing
into the pages.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from tasuki.model.config import DeltaNetConfig
from tasuki.model.forward import Activations, DecodeBatch, Reduce
from tasuki.model.ops.attention.decode import DecodeWorkspace, paged_attention_decode
from tasuki.model.ops.attention.qk_norm_rope_gate import RopeDeltas, TokenPlaces, qk_norm_rope_gate
from tasuki.model.ops.attention.spans.attention import SpanWorkspace, attend_spans
from tasuki.model.ops.attention.spans.groups import SpanGroups
from tasuki.model.ops.attention.verify import paged_attention_verify
from tasuki.model.ops.draft.entry_inputs import entry_inputs
from tasuki.model.ops.gdn.decode import gdn_decode
from tasuki.model.ops.linear.normed_product import normed_product
from tasuki.model.ops.linear.phase_product import phase_gate_up, phase_product, phase_swiglu
from tasuki.model.ops.linear.row_product import normed_row_product, normed_row_swiglu, row_product
from tasuki.model.ops.linear.small_batch import MOST_ROWS, is_one_round, small_batch
from tasuki.model.ops.moe.experts import moe
from tasuki.model.ops.norm.rms_norm import add_rms_norm
from tasuki.model.weights.layers import (
    AttentionWeights,
    DraftWeights,
    GdnWeights,
    MlpWeights,
    MoeWeights,
)
from tasuki.model.weights.matrix import Matrix

from .base import Operators
from .triton_entries import Product, StepEntries


@dataclass(frozen=True)
class DecodeScratch:
    """Scratch memory shared by decode steps of up to `batch` sequences. All launches using it must
    be on one stream.

    attention: memory for partial attention results. owners: [batch] int32, the numbers 0, 1, 2 and
    so on: row i belongs to sequence i. spans: memory for attention by spans; None: by even shares.
    """

    attention: DecodeWorkspace
    owners: Tensor
    spans: SpanWorkspace | None = None

    @staticmethod
    def of(config: DeltaNetConfig, batch: int, device: torch.device) -> "DecodeScratch":
        return DecodeScratch(
            attention=DecodeWorkspace.of(config, batch, device),
            owners=torch.arange(batch, dtype=torch.int32, device=device),
        )


def groups_of(spans: SpanWorkspace | None) -> SpanGroups | None:
    """Return the memory for plans of rows that share pages; None without spans."""
    return None if spans is None else spans.groups


_FIRST_KEY = 1


def rope_of(deltas: Tensor | None) -> RopeDeltas | None:
    """Return the rotary positions of tokens with these deltas; None: their positions."""
    return None if deltas is None else RopeDeltas(deltas)


@dataclass(frozen=True)
class DraftRows:
    """The rows of one draft-layer pass: one token per sequence. batch: positions, pages and slots;
    scratch: memory of the decode step; counts [batch] int32: ones, the number of tokens in each
    row."""

    batch: DecodeBatch
    scratch: DecodeScratch
    counts: Tensor


class TritonDraft:
    """Triton's `DraftOperators` for the passes described by a `DecodeBatch`, for all values in its
    tensors. A row with a position below 0 is padding."""

    def __init__(
        self,
        config: DeltaNetConfig,
        rows: DraftRows,
        rotary: Tensor,
        step: Operators,
        product: Product,
    ) -> None:
        """rotary: angles from `rotary_cache`; step: operators of a decode step on the same batch;
        product: multiplies x by a transposed weight, without a sum over ranks."""
        batch, scratch = rows.batch, rows.scratch
        self._config = config
        self._rows = rows
        self._rotary = rotary
        self._step = step
        self._product = product
        self._places = TokenPlaces(
            *(batch.positions, scratch.owners[: batch.size], batch.page_table, batch.rows),
            gaps=True,
            rope=rope_of(batch.rope_deltas),
        )

    def head(self, hidden: Tensor, weight: Matrix) -> Tensor:
        return self._product(hidden, weight)

    def join(
        self, tokens: Tensor, before: Tensor, embedding: Tensor, weights: DraftWeights
    ) -> Tensor:
        batch = self._rows.batch
        own = self._rows.scratch.owners[: batch.size]
        joined = entry_inputs(
            tokens,
            None,
            embedding,
            before,
            own,
            own,
            batch.rows,
            (weights.embedding_norm, weights.hidden_norm),
            self._config.norm_eps,
        )
        return self._product(joined, weights.fc)

    def draft(self, x: Tensor, weights: DraftWeights, kv: Tensor) -> Tensor:
        layer, step = weights.layer, self._step
        attention = weights.attention
        projected, residual = step.norm_project(None, x, layer.mixer_norm, attention.in_proj)
        mixed = self._attention(projected, attention, kv)
        branch = step.project(mixed, attention.out_proj)
        branch, residual = step.feed_forward(branch, residual, layer.mlp_norm, layer.mlp)
        return add_rms_norm(branch, residual, weights.norm, self._config.norm_eps)[0]

    def _attention(self, projected: Tensor, weights: AttentionWeights, kv: Tensor) -> Tensor:
        batch, places = self._rows.batch, self._places
        q = qk_norm_rope_gate(projected, weights, self._config, self._rotary, places, kv)
        return paged_attention_verify(
            q,
            projected,
            self._config,
            kv,
            batch.page_table,
            batch.context_lens,
            self._rows.counts[: batch.size],
            batch.rows,
            self._rows.scratch.attention,
            _FIRST_KEY,
        )


class TritonDecode:
    """Triton's `Operators` of the decode steps described by a `DecodeBatch`, for all values in its
    tensors."""

    def __init__(
        self,
        config: DeltaNetConfig,
        batch: DecodeBatch,
        scratch: DecodeScratch,
        rotary: Tensor,
        side: torch.cuda.Stream,
        reduce: Reduce,
        activations: Activations = Activations.MODEL,
    ) -> None:
        """rotary: angles from `rotary_cache`; side: a second stream. It runs the shared expert in
        parallel with the routed experts, and the draft layer's KV in parallel with the first
        layers. activations: those of steps."""
        self._config = config
        self._batch = batch
        self._scratch = scratch
        self._rotary = rotary
        self._side = side
        self._reduce = reduce
        self._activations = activations
        self._places = TokenPlaces(
            *(batch.positions, scratch.owners[: batch.size], batch.page_table, batch.rows),
            rope=rope_of(batch.rope_deltas),
        )

    def norm_project(
        self, branch: Tensor | None, residual: Tensor, norm: Tensor, weight: Matrix
    ) -> tuple[Tensor, Tensor]:
        eps = self._config.norm_eps
        return normed_product(branch, residual, norm, eps, weight, self._activations)

    def norm_head(
        self, branch: Tensor | None, residual: Tensor, norm: Tensor, weight: Matrix
    ) -> Tensor:
        return self.norm_project(branch, residual, norm, weight)[0]

    def project(self, x: Tensor, weight: Matrix) -> Tensor:
        return self._reduce(self._product(x, weight))

    def gdn(self, projected: Tensor, weights: GdnWeights, conv: Tensor, ssm: Tensor) -> Tensor:
        batch = self._batch
        return gdn_decode(
            projected,
            weights,
            self._config,
            conv,
            ssm,
            batch.read_slots,
            batch.write_slots,
            batch.rows,
            batch.positions,
        )

    def attention(self, projected: Tensor, weights: AttentionWeights, kv: Tensor) -> Tensor:
        batch = self._batch
        q = qk_norm_rope_gate(projected, weights, self._config, self._rotary, self._places, kv)
        inputs = (q, projected, self._config, kv, batch.page_table, batch.context_lens)
        if self._scratch.spans is not None:
            return attend_spans(*inputs, None, batch.rows, self._scratch.spans)
        return paged_attention_decode(*inputs, batch.rows, self._scratch.attention)

    def feed_forward(
        self, branch: Tensor, residual: Tensor, norm: Tensor, weights: MlpWeights | MoeWeights
    ) -> tuple[Tensor, Tensor]:
        eps, activations = self._config.norm_eps, self._activations
        if isinstance(weights, MoeWeights):
            x, residual = add_rms_norm(branch, residual, norm, eps)
            output = moe(x, weights, self._config, self._batch.rows, self._side, activations)
        elif activations is Activations.ROWS:
            both, residual = normed_product(
                branch, residual, norm, eps, weights.gate_up, activations
            )
            output = phase_swiglu(both, weights.down, activations)
        else:
            x, residual = add_rms_norm(branch, residual, norm, eps)
            acts = phase_gate_up(x, weights.gate_up, activations)
            output = self._product(acts, weights.down)
        return self._reduce(output), residual

    def step_entries(self) -> StepEntries:
        batch = self._batch
        return StepEntries(
            *(self._config, self._rotary, self._places, batch.read_slots, self._product),
            *(batch.write_slots, self._side),
        )

    def drafts(self, counts: Tensor) -> TritonDraft:
        """Return the draft layer's operators for the same batch. counts: int32 ones, at least one
        for each row."""
        rows = DraftRows(self._batch, self._scratch, counts)
        return TritonDraft(self._config, rows, self._rotary, self, self._product)

    def _product(self, x: Tensor, weight: Matrix) -> Tensor:
        """Return x [T, k] times weight [hidden, k] transposed, without a sum over ranks."""
        if weight.is_plain and self._batch.size <= MOST_ROWS and is_one_round(weight.plain):
            return small_batch(x, weight.plain)
        return phase_product(x, weight, self._activations)


class TritonRowDecode(TritonDecode):
    """Operators of a decode step with few rows, so that reading weights limits its speed. Norms and
    SwiGLU run inside the matrix products and take no launches of their own. REQUIRES: activations
    of `Activations.MODEL`."""

    def norm_project(
        self, branch: Tensor | None, residual: Tensor, norm: Tensor, weight: Matrix
    ) -> tuple[Tensor, Tensor]:
        return normed_row_product(branch, residual, norm, self._config.norm_eps, weight)

    def feed_forward(
        self, branch: Tensor, residual: Tensor, norm: Tensor, weights: MlpWeights | MoeWeights
    ) -> tuple[Tensor, Tensor]:
        if isinstance(weights, MoeWeights):
            return super().feed_forward(branch, residual, norm, weights)
        acts, residual = normed_row_swiglu(
            branch, residual, norm, self._config.norm_eps, weights.gate_up
        )
        return self._reduce(self._product(acts, weights.down)), residual

    def _product(self, x: Tensor, weight: Matrix) -> Tensor:
        return row_product(x, weight)
