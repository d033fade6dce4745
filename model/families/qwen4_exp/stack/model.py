"""The layer stack of Qwen4-Exp in PyTorch, for CPUs.

Streams [T, count * hidden] are the residual. Each layer reads and writes them twice, by a
hyper-connection each: for its mixer, and for its experts. All state is in views of pages and slots.
Token ids before a forward come with the batch, since the n-gram table needs them; they are no
state.

Inputs kept of a token for a fold: of a recurrent layer its projections, then its table row if it
has a table; of a sparse layer its raw index key; of the draft layer its streams and window.
"""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor
from torch.nn import functional

from tasuki.model.families.qwen4_exp.config import Qwen4ExpConfig
from tasuki.model.families.qwen4_exp.stack.draft_layer import DraftLayer, DraftRows
from tasuki.model.families.qwen4_exp.stack.mixers import (
    SparseInputs,
    experts,
    joined,
    recurrent_mixer,
    sparse_mixer,
)
from tasuki.model.families.qwen4_exp.stack.plan import BoundForward, StatePlan, Views
from tasuki.model.families.qwen4_exp.streams import (
    begin_streams,
    final_input,
    read_streams,
    write_streams,
)
from tasuki.model.families.qwen4_exp.table.layer import add_table, gated_rows
from tasuki.model.families.qwen4_exp.weights import LayerWeights, ModelWeights
from tasuki.model.forward import Batch, Gather, LayerHooks, Reduce, one_rank
from tasuki.model.ops.attention.rope import RotaryAngles
from tasuki.model.ops.linear.reference import product
from tasuki.model.ops.row_room import RowRoom
from tasuki.model.ops.sampling.prompt_scores import HeadOf
from tasuki.model.ops.sampling.slice import Slice
from tasuki.model.weights.layers import GdnWeights


class Qwen4ExpModel:
    """A Qwen4-Exp model with its weights, on a CPU. REQUIRES: the page and slot ids of a batch are
    inside the views. Thread rule: one thread."""

    def __init__(
        self,
        config: Qwen4ExpConfig,
        weights: ModelWeights,
        reduce: Reduce = one_rank,
        gather: Gather = one_rank,
    ) -> None:
        """reduce, gather: exchanges between ranks, if config and weights are one rank's."""
        self.config = config
        self.weights = weights
        self._reduce = reduce
        self._gather = one_rank if config.head_rows is None else gather
        self._angles = RotaryAngles.of(config)
        self._room = RowRoom()
        self._draft = (
            None
            if weights.draft is None
            else DraftLayer(weights.draft, weights.embedding, config, reduce)
        )

    @torch.inference_mode()
    def forward(
        self,
        batch: Batch,
        views: Views,
        hooks: LayerHooks,
        score: Callable[[HeadOf], None] | None = None,
    ) -> Tensor:
        """Run a batch through the model, and write its pages and slots. Return the logits [B,
        vocab] float32 of each sequence's last token. score: called with a function to compute other
        rows' logits; None: no other rows are needed."""
        bound = BoundForward.of(batch, self.config, self._angles)
        streams = self.layers(batch.token_ids, bound, views, hooks)
        if score is not None:
            score(lambda rows: self.head(streams[rows]))
        logits = self.head(streams[batch.cu_seqlens[1:] - 1]).float()
        if self._draft is not None:
            layer = self.config.layers
            hooks.before_layer(layer)
            rows = self._draft.store_entries(batch.token_ids, streams, views[layer], bound)
            hooks.mixer_inputs(layer, rows.packed)
            hooks.cache_written(layer)
            hooks.after_layer(layer, torch.zeros_like(streams), streams)
        return logits

    def layers(
        self, token_ids: Tensor, bound: BoundForward, views: Views, hooks: LayerHooks
    ) -> Tensor:
        """Run token_ids [T] through all layers. Return the streams [T, count * hidden]."""
        config = self.config
        count, eps = config.streams.count, config.norm_eps
        embedded = functional.embedding(token_ids, self.weights.embedding)
        streams = begin_streams(embedded, count)
        for layer, weights in enumerate(self.weights.layers):
            hooks.before_layer(layer)
            streams, mixed, factors = self._mix(layer, weights, streams, bound, views, hooks)
            hooks.cache_written(layer)
            streams = write_streams(streams, mixed, factors)
            x, factors = read_streams(streams, weights.experts_connection, count, eps)
            output = self._reduce(experts(x, weights.experts, config))
            written = write_streams(streams, output, factors)
            hooks.after_layer(layer, written - streams, streams)
            streams = written
        return streams

    def head(self, streams: Tensor) -> Tensor:
        """Return the logits [n, vocab] in the model's dtype, for some or all rows of the result of
        layers()."""
        return self._gather(self.own_head(streams))

    def own_head(self, streams: Tensor) -> Tensor:
        """Return the logits as head() does, for this rank's part of the vocabulary."""
        config, weights = self.config, self.weights
        x = final_input(streams, weights.final, config.streams.count, config.norm_eps)
        return product(x, weights.head)

    @property
    def own_slice(self) -> Slice | None:
        """Return this rank's part of the vocabulary, as computed by own_head(); None: all of it."""
        rows = self.config.head_rows
        return None if rows is None else Slice(rows.start, self._gather)

    @torch.inference_mode()
    def draft_logits(self, rows: Tensor, batch: Batch, views: Views) -> tuple[Tensor, Tensor]:
        """Return the draft layer's prediction after each of the batch's tokens: (logits [T, vocab]
        float32, rows kept of the tokens). rows: kept of the token before each token, by a forward's
        hooks or this method. REQUIRES: one token of each sequence, at position 1 or later."""
        assert self._draft is not None, "the model has no weights of a draft layer"
        bound = BoundForward.of(batch, self.config, self._angles)
        before = DraftRows.unpack(rows, self.config)
        final, kept = self._draft.guess(
            batch.token_ids, before, views[self.config.layers], bound, self._room
        )
        return self._gather(product(final, self.weights.head)).float(), kept.packed

    def kept_row(self, views: Views, slot: int) -> Tensor:
        """Return what a slot keeps of its last token for the draft layer, as one row."""
        rows = DraftRows.of_slot(views[self.config.layers], slot, self.weights.dtype)
        return rows.packed[0]

    @torch.inference_mode()
    def fold(self, batch: Batch, inputs: Mapping[int, Tensor], views: Views) -> None:
        """Advance and store the states of a batch, for tokens computed before. inputs: by layer,
        the tensors received by hooks.mixer_inputs() for these tokens."""
        config = self.config
        plan = StatePlan.of(batch, config)
        index = plan.windows[config.index.ratio - 1]
        for layer, weights in enumerate(self.weights.layers):
            rows = inputs[layer]
            if not isinstance(weights.mixer, GdnWeights):
                index.extend(rows, views[layer]["index_window"])
                continue
            if weights.table is not None:
                rows, table = rows.tensor_split([rows.shape[1] - config.stream_width], dim=-1)
                columns = config.table_window(weights.table.table.shape)
                plan.windows[columns].extend(table, views[layer]["ple_window"])
            recurrent_mixer(rows, weights.mixer, views[layer], config, plan)
        if self._draft is not None:
            kept = DraftRows.unpack(inputs[config.layers], config)
            self._draft.store_kept(kept, views[config.layers], plan.carry)

    def _mix(
        self,
        layer: int,
        weights: LayerWeights,
        streams: Tensor,
        bound: BoundForward,
        views: Views,
        hooks: LayerHooks,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Run the layer's table and mixer. Return the streams before the mixer's output, this
        output [T, hidden], and its factors [T, count]."""
        config, own, mixer = self.config, views[layer], weights.mixer
        table_rows: tuple[Tensor, ...] = ()
        if weights.table is not None:
            plan = bound.tables[layer]
            rows = gated_rows(streams, plan, weights.table, config)
            streams = add_table(streams, rows, plan, weights.table, own["ple_window"])
            table_rows = (rows.normed,)
        x, factors = read_streams(
            streams, weights.mixer_connection, config.streams.count, config.norm_eps
        )
        if isinstance(mixer, GdnWeights):
            projected = product(x, mixer.in_proj)
            hooks.mixer_inputs(layer, joined(projected, *table_rows))
            mixed = recurrent_mixer(projected, mixer, own, config, bound.state)
            return streams, self._reduce(product(mixed, mixer.out_proj)), factors
        inputs = SparseInputs.of(x, mixer, config)
        hooks.mixer_inputs(layer, inputs.index_keys)
        extended = bound.index.window.extend(inputs.index_keys, own["index_window"])
        mixed = sparse_mixer(inputs, extended, mixer, own, config, bound, bound.index, self._room)
        return streams, self._reduce(product(mixed, mixer.attention.out_proj)), factors
