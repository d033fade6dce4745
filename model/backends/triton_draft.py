"""The operators of the draft layer's guess in Triton: one token a sequence, every address fixed.

All but attention are a decode step's: no query sees position 0, whose entry is of no hidden state,
and rows of which nothing is wanted any more leave nothing in the pages. Waits for nothing and
allocates only through PyTorch, so that a CUDA graph may capture it.
"""

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from tasuki.model.batch import DecodeBatch
from tasuki.model.config import ModelConfig
from tasuki.model.ops.attention.qk_norm_rope_gate import TokenPlaces, qk_norm_rope_gate
from tasuki.model.ops.attention.verify import paged_attention_verify
from tasuki.model.ops.draft.entry_inputs import entry_inputs
from tasuki.model.ops.norm.rms_norm import add_rms_norm
from tasuki.model.weights.layers import AttentionWeights, DraftWeights
from tasuki.model.weights.matrix import Matrix

from .base import Operators
from .decode_scratch import DecodeScratch

_FIRST_KEY = 1


@dataclass(frozen=True)
class DraftRows:
    """Of the batch that a guess takes: one number a row. counts [batch] int32: ones, the tokens of
    each row."""

    batch: DecodeBatch
    scratch: DecodeScratch
    counts: Tensor


class TritonDraft:
    """`DraftOperators` of the guesses that a `DecodeBatch` will ever describe, whose rows may be
    padding: a position below 0."""

    def __init__(
        self,
        config: ModelConfig,
        rows: DraftRows,
        rotary: Tensor,
        step: Operators,
        product: Callable[[Tensor, Matrix], Tensor],
    ) -> None:
        """rotary: of `rotary_cache`; step: the same batch's decode step; product: x times a weight
        transposed, of this rank alone."""
        batch, scratch = rows.batch, rows.scratch
        self._config = config
        self._rows = rows
        self._rotary = rotary
        self._step = step
        self._product = product
        self._places = TokenPlaces(
            batch.positions, scratch.owners[: batch.size], batch.page_table, batch.rows, gaps=True
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
