"""The draft layer of Qwen4-Exp, in PyTorch: a sparse layer with experts, on streams of its own.

Entry j, at position j >= 1, is made from token j and the streams of token j - 1 before the last
mixer. Entry 0 is made from streams of zeros: it is written and never attended to. So blocks of
entries begin at entry 1.

What is kept of a token for later entries is one row: its streams, then the window of raw index keys
up to its entry. A chain of drafts passes such rows on, and a slot has the row's two parts as carry
and index_window.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from tasuki.model.families.qwen4_exp.config import Qwen4ExpConfig
from tasuki.model.families.qwen4_exp.stack.mixers import (
    SparseInputs,
    experts,
    sparse_mixer,
    write_entries,
)
from tasuki.model.families.qwen4_exp.stack.plan import BoundForward
from tasuki.model.families.qwen4_exp.streams import (
    each_stream,
    final_input,
    read_streams,
    write_streams,
)
from tasuki.model.families.qwen4_exp.weights import DraftWeights
from tasuki.model.forward import Reduce
from tasuki.model.ops.draft.reference import CarryPlan, carry_over, states_before
from tasuki.model.ops.linear.reference import product
from tasuki.model.ops.norm.reference import rms_norm
from tasuki.model.ops.row_room import RowRoom


@dataclass(frozen=True)
class DraftRows:
    """What is kept of T tokens for later entries. streams [T, count * hidden]; window [T, ratio -
    1, dim]: raw index keys of the last entries, oldest first."""

    streams: Tensor
    window: Tensor

    @property
    def packed(self) -> Tensor:
        """Return one row a token, [T, count * hidden + (ratio - 1) * dim]."""
        return torch.cat([self.streams, self.window.flatten(1).to(self.streams.dtype)], dim=-1)

    @staticmethod
    def unpack(rows: Tensor, config: Qwen4ExpConfig) -> "DraftRows":
        """Return the parts of packed rows."""
        streams, window = rows.tensor_split([config.stream_width], dim=-1)
        return DraftRows(streams, window.reshape(len(window), -1, config.index.dim))

    @staticmethod
    def of_slots(views: Mapping[str, Tensor], dtype: torch.dtype) -> "DraftRows":
        """Return the rows kept in all slots. views: the draft layer's parts."""
        streams, window = views["carry"], views["index_window"].transpose(1, 2)
        return DraftRows(streams.to(dtype), window.to(dtype))


@dataclass(frozen=True)
class DraftLayer:
    """The draft layer with its weights. embedding: the model's."""

    weights: DraftWeights
    embedding: Tensor
    config: Qwen4ExpConfig
    reduce: Reduce

    def store_entries(
        self,
        tokens: Tensor,
        streams: Tensor,
        views: Mapping[str, Tensor],
        bound: BoundForward,
    ) -> DraftRows:
        """Write the entries of a forward's tokens [T] into their pages, and store the planned
        states. Return what is kept of each token. streams [T, count * hidden]: of this forward,
        before the last mixer."""
        config, sparse = self.config, self.weights.sparse
        before = states_before(streams, views["carry"], bound.state.carry)
        x, _ = self._read(self._joined(tokens, before))
        # Keys and values are the last rows, so the queries' product is left out.
        rows = 2 * config.kv_heads * config.head_dim
        k, v = product(x, sparse.attention.in_proj.last_rows(rows)).chunk(2, dim=-1)
        write_entries(k, v, sparse.attention, views["kv"], config, bound)
        keys = functional.linear(x, sparse.index.query_key[-config.index.dim :])
        window = bound.entries.window
        extended = window.extend(keys, views["index_window"])
        bound.entries.write(extended, sparse.index.k_norm, config.norm_eps, views["index"])
        carry_over(streams, views["carry"], bound.state.carry)
        return DraftRows(streams, window.behind(extended))

    def store_kept(self, rows: DraftRows, views: Mapping[str, Tensor], plan: CarryPlan) -> None:
        """Store the planned states of tokens computed before, from what was kept of them."""
        carry_over(rows.streams, views["carry"], plan)
        window = rows.window[plan.rows].transpose(1, 2)
        views["index_window"][plan.slots] = window.to(views["index_window"].dtype)

    def guess(
        self,
        tokens: Tensor,
        before: DraftRows,
        views: Mapping[str, Tensor],
        bound: BoundForward,
        room: RowRoom,
    ) -> tuple[Tensor, DraftRows]:
        """Predict after tokens [T], one of each sequence, and write their entries. Return the
        head's input [T, hidden], and what is kept of the tokens. before: what was kept of the
        tokens before them."""
        config, layer, sparse = self.config, self.weights.layer, self.weights.sparse
        count, eps = config.streams.count, config.norm_eps
        streams = self._joined(tokens, before.streams)
        x, factors = self._read(streams)
        inputs = SparseInputs.of(x, sparse, config)
        # A sequence of one token has its window and its token as extended rows.
        members = torch.cat([before.window, inputs.index_keys[:, None]], dim=1)
        mixed = sparse_mixer(
            inputs,
            members.flatten(0, 1),
            sparse,
            views,
            config,
            bound,
            bound.entries,
            room,
        )
        output = self.reduce(product(mixed, sparse.attention.out_proj))
        streams = write_streams(streams, output, factors)
        x, factors = read_streams(streams, layer.experts_connection, count, eps)
        output = self.reduce(experts(x, layer.experts, config))
        streams = write_streams(streams, output, factors)
        final = final_input(streams, self.weights.final, count, eps)
        return final, DraftRows(streams, members[:, 1:])

    def _joined(self, tokens: Tensor, before: Tensor) -> Tensor:
        """Return the layer's streams [T, count * hidden] from token ids [T] and the streams of the
        tokens before."""
        weights, eps, count = self.weights, self.config.norm_eps, self.config.streams.count
        embedded = functional.embedding(tokens, self.embedding)
        embedded = rms_norm(embedded, weights.embedding_norm, eps)
        hidden = each_stream(rms_norm(before, weights.hidden_norm, eps), count)
        hidden = functional.linear(hidden, weights.fc_hidden)
        return (hidden + functional.linear(embedded, weights.fc_embedding)[:, None]).flatten(1)

    def _read(self, streams: Tensor) -> tuple[Tensor, Tensor]:
        connection = self.weights.layer.mixer_connection
        return read_streams(streams, connection, self.config.streams.count, self.config.norm_eps)
