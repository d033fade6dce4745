"""The operators for verifying drafts in Triton: T tokens per sequence, every address fixed.

All operators except attention and GDN are those of a decode step with T times as many rows. The
operators wait for nothing and allocate only through PyTorch, so a CUDA graph may capture them.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from tasuki.model.config import DeltaNetConfig
from tasuki.model.forward import Activations, DecodeBatch, FoldRows, Reduce, VerifyBatch
from tasuki.model.layer_kind import LayerKind
from tasuki.model.ops.attention.decode import DecodeWorkspace
from tasuki.model.ops.attention.qk_norm_rope_gate import TokenPlaces, qk_norm_rope_gate
from tasuki.model.ops.attention.spans.attention import SpanWorkspace, attend_spans
from tasuki.model.ops.attention.verify import paged_attention_verify
from tasuki.model.ops.draft.carry import carry_folded
from tasuki.model.ops.gdn.verify.fold import fold_columns
from tasuki.model.ops.gdn.verify.kept_inputs import KeptTurns
from tasuki.model.ops.gdn.verify.rows import RowFolds, gdn_verify
from tasuki.model.weights.layers import AttentionWeights, GdnWeights

from .triton_decode import DecodeScratch, TritonDecode, rope_of
from .triton_entries import VerifyEntries


@dataclass(frozen=True)
class VerifyScratch:
    """Memory shared by verification steps of up to `batch` sequences with up to `tokens` tokens
    each. All launches using it must be on one stream. kept: GDN inputs of this step and of the last
    one, for folds (storing states after the accepted tokens). hidden [batch, tokens, width]: final
    hidden states, for the same use; None without a draft layer. spans: as in DecodeScratch."""

    attention: DecodeWorkspace
    kept: KeptTurns
    hidden: Tensor | None
    spans: SpanWorkspace | None = None

    @staticmethod
    def of(
        config: DeltaNetConfig, batch: int, tokens: int, dtype: torch.dtype, device: torch.device
    ) -> "VerifyScratch":
        workspace = DecodeWorkspace.of(config, batch, device).of_tokens(tokens)
        layers = config.layer_kinds.count(LayerKind.GDN)
        kept = KeptTurns.empty(config, layers, batch, tokens, dtype, device)
        hidden = None
        if config.draft_layers:
            hidden = torch.empty(batch, tokens, config.hidden, dtype=dtype, device=device)
        return VerifyScratch(workspace, kept, hidden)


class TritonVerify(TritonDecode):
    """Triton's `Operators` of the verification steps described by a `VerifyBatch`, for all values
    in its tensors. Call a forward's GDN layers in their order, each once: each call keeps its
    inputs as those of the next layer."""

    def __init__(
        self,
        config: DeltaNetConfig,
        batch: VerifyBatch,
        scratch: VerifyScratch,
        rotary: Tensor,
        side: torch.cuda.Stream,
        reduce: Reduce,
        activations: Activations = Activations.MODEL,
    ) -> None:
        # Operators without sequences see every token as a row.
        rows = DecodeBatch(
            positions=batch.positions,
            context_lens=batch.context_lens,
            page_table=batch.page_table,
            read_slots=batch.read_slots,
            write_slots=batch.read_slots,
            rows=batch.token_rows,
        )
        shared = DecodeScratch(scratch.attention, batch.owners, scratch.spans)
        super().__init__(config, rows, shared, rotary, side, reduce, activations)
        self._places = TokenPlaces(
            *(batch.positions, batch.owners, batch.page_table, batch.token_rows),
            gaps=True,
            rope=rope_of(batch.rope_deltas),
        )
        self._verified = batch
        self._kept = scratch.kept
        self._hidden = scratch.hidden
        self._layer = 0

    def fold(self, conv: Sequence[Tensor], carry: Tensor | None) -> None:
        """Store the convolution columns and the carried hidden states after the tokens accepted in
        the last step (a fold). gdn() stores the recurrent states. Call it before any layer runs.
        conv: views of all layers' columns; carry: the draft layer's hidden states; None without a
        draft layer."""
        batch = self._verified
        rows = FoldRows(batch.fold_places, batch.fold_counts, batch.fold_slots, batch.read_slots)
        fold_columns(self._kept, self._config, conv, rows, batch.turn)
        if carry is not None and self._hidden is not None:
            carry_folded(
                self._hidden, batch.fold_places, batch.fold_counts, carry, batch.read_slots
            )

    def entries(self) -> VerifyEntries:
        batch = self._verified
        assert self._hidden is not None, "the config has no draft layer"
        kept = self._hidden[: batch.size, : batch.tokens]
        return VerifyEntries(
            self._config, self._rotary, self._places, batch.read_slots, self._product, kept
        )

    def gdn(self, projected: Tensor, weights: GdnWeights, conv: Tensor, ssm: Tensor) -> Tensor:
        batch, layer = self._verified, self._layer
        self._layer += 1
        return gdn_verify(
            projected,
            weights,
            self._config,
            conv,
            ssm,
            batch.read_slots,
            batch.counts,
            batch.rows,
            batch.positions,
            self._kept.layer(layer),
            batch.turn,
            RowFolds(batch.fold_counts, batch.fold_places, batch.fold_slots),
        )

    def attention(self, projected: Tensor, weights: AttentionWeights, kv: Tensor) -> Tensor:
        batch = self._verified
        q = qk_norm_rope_gate(projected, weights, self._config, self._rotary, self._places, kv)
        inputs = (q, projected, self._config, kv, batch.page_table, batch.context_lens)
        if self._scratch.spans is not None:
            return attend_spans(*inputs, batch.counts, batch.rows, self._scratch.spans)
        return paged_attention_verify(*inputs, batch.counts, batch.rows, self._scratch.attention)
