"""The operators of a decode step in Triton: one token a sequence, every address fixed.

Waits for nothing and allocates only through PyTorch, so that a CUDA graph may capture it.
"""

import torch
from torch import Tensor

from tasuki.model.batch import DecodeBatch
from tasuki.model.config import ModelConfig
from tasuki.model.ops.attention.decode import paged_attention_decode
from tasuki.model.ops.attention.qk_norm_rope_gate import TokenPlaces, qk_norm_rope_gate
from tasuki.model.ops.gdn.decode import gdn_decode
from tasuki.model.ops.linear.phase_product import phase_gate_up, phase_product
from tasuki.model.ops.linear.row_product import (
    normed_row_product,
    normed_row_swiglu,
    row_product,
)
from tasuki.model.ops.linear.small_batch import MOST_ROWS, is_one_round, small_batch
from tasuki.model.ops.moe.experts import moe
from tasuki.model.ops.norm.rms_norm import add_rms_norm, rms_norm
from tasuki.model.phase import Phase
from tasuki.model.weights.layers import AttentionWeights, GdnWeights, MlpWeights, MoeWeights
from tasuki.model.weights.matrix import Matrix

from .decode_scratch import DecodeScratch
from .reduce import Reduce
from .triton_draft import DraftRows, TritonDraft
from .triton_entries import StepEntries


class TritonDecode:
    """`Operators` of the steps that a `DecodeBatch` will ever describe."""

    def __init__(
        self,
        config: ModelConfig,
        batch: DecodeBatch,
        scratch: DecodeScratch,
        rotary: Tensor,
        side: torch.cuda.Stream,
        reduce: Reduce,
    ) -> None:
        """rotary: of `rotary_cache`; side: where the shared expert runs beside the chosen ones, and
        the draft layer's entries beside the first layers."""
        self._config = config
        self._batch = batch
        self._scratch = scratch
        self._rotary = rotary
        self._side = side
        self._reduce = reduce
        self._places = TokenPlaces(
            batch.positions, scratch.owners[: batch.size], batch.page_table, batch.rows
        )

    def norm_project(
        self, branch: Tensor | None, residual: Tensor, norm: Tensor, weight: Matrix
    ) -> tuple[Tensor, Tensor]:
        eps = self._config.norm_eps
        if branch is None:
            return phase_product(rms_norm(residual, norm, eps), weight, Phase.STEP), residual
        normed, residual = add_rms_norm(branch, residual, norm, eps)
        return phase_product(normed, weight, Phase.STEP), residual

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
        )

    def attention(self, projected: Tensor, weights: AttentionWeights, kv: Tensor) -> Tensor:
        batch = self._batch
        q = qk_norm_rope_gate(projected, weights, self._config, self._rotary, self._places, kv)
        return paged_attention_decode(
            q,
            projected,
            self._config,
            kv,
            batch.page_table,
            batch.context_lens,
            batch.rows,
            self._scratch.attention,
        )

    def feed_forward(
        self, branch: Tensor, residual: Tensor, norm: Tensor, weights: MlpWeights | MoeWeights
    ) -> tuple[Tensor, Tensor]:
        x, residual = add_rms_norm(branch, residual, norm, self._config.norm_eps)
        if isinstance(weights, MoeWeights):
            output = moe(x, weights, self._config, self._batch.rows, self._side)
        else:
            acts = phase_gate_up(x, weights.gate_up, Phase.STEP)
            output = self._product(acts, weights.down)
        return self._reduce(output), residual

    def step_entries(self) -> StepEntries:
        batch = self._batch
        slots = batch.read_slots, batch.write_slots
        return StepEntries(
            self._config, self._rotary, self._places, slots, self._product, self._side
        )

    def drafts(self, counts: Tensor) -> TritonDraft:
        """Of the draft layer, for the same batch. counts [at least its rows] int32: ones."""
        rows = DraftRows(self._batch, self._scratch, counts)
        return TritonDraft(self._config, rows, self._rotary, self, self._product)

    def _product(self, x: Tensor, weight: Matrix) -> Tensor:
        """x times weight [hidden, k] transposed, of this rank alone."""
        if weight.is_plain and self._batch.size <= MOST_ROWS and is_one_round(weight.plain):
            return small_batch(x, weight.plain)
        return phase_product(x, weight, Phase.STEP)


class TritonRowDecode(TritonDecode):
    """Of so few rows that products are streams of weights: norms, SwiGLU and launches hide in
    them."""

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
