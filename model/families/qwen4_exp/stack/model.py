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

from tasuki.model.drafts import NoDraftLayer
from tasuki.model.families.family import Assembly
from tasuki.model.families.qwen4_exp.config import Qwen4ExpConfig
from tasuki.model.families.qwen4_exp.stack.draft_layer import DraftLayer, DraftRows
from tasuki.model.families.qwen4_exp.stack.mixers import (
    SparseInputs,
    experts,
    joined,
    recurrent_mixer,
    sparse_mixer,
)
from tasuki.model.families.qwen4_exp.stack.plan import BoundForward, Views, views_of
from tasuki.model.families.qwen4_exp.states import StatePlan
from tasuki.model.families.qwen4_exp.streams import (
    begin_streams,
    final_input,
    read_streams,
    write_streams,
)
from tasuki.model.families.qwen4_exp.table.layer import add_table, gated_rows
from tasuki.model.families.qwen4_exp.weights import LayerWeights, ModelWeights
from tasuki.model.forward import Batch, LayerHooks, one_rank
from tasuki.model.ops.attention.rope import RotaryAngles
from tasuki.model.ops.linear.reference import product
from tasuki.model.ops.row_room import RowRoom
from tasuki.model.ops.sampling.prompt_scores import HeadOf
from tasuki.model.ops.sampling.slice import Slice
from tasuki.model.weights.layers import GdnWeights
from tasuki.model.weights.matrix import Matrix
from tasuki.pycache.arena import Arena
from tasuki.utils.signatures import Notice


class Qwen4ExpModel:
    """`Model` of this family, on a CPU. Thread rule: one thread."""

    def __init__(
        self, config: Qwen4ExpConfig, weights: ModelWeights, assembly: Assembly | None = None
    ) -> None:
        """assembly: what an engine adds; None: one rank, and any token as a draft."""
        assembly = assembly or Assembly()
        self.config = config
        self.weights = weights
        self._drafts = assembly.drafts
        self._reduce = assembly.reduce
        self._gather = one_rank if config.head_rows is None else assembly.gather
        self._angles = RotaryAngles.of(config)
        self._room = RowRoom()

    @property
    def draft_ids(self) -> Tensor | None:
        """Return the token ids allowed as drafts, [n] int64, ascending; None: any token."""
        return None if self._drafts is None else self._drafts.ids

    @property
    def draft_rows(self) -> Matrix | None:
        return None if self._drafts is None else self._drafts.head

    @property
    def own_slice(self) -> Slice | None:
        """Return this rank's part of the vocabulary; None: all of it."""
        rows = self.config.head_rows
        return None if rows is None else Slice(rows.start, self._gather)

    @torch.inference_mode()
    def forward(
        self,
        batch: Batch,
        arena: Arena,
        hooks: LayerHooks,
        score: Callable[[HeadOf], None] | None = None,
    ) -> Tensor:
        """Run a batch through the model, and write its pages and slots; see Model."""
        bound = BoundForward.of(batch, self.config, self._angles)
        views = views_of(arena)
        streams = self.layers(batch.token_ids, bound, views, hooks)
        if score is not None:
            score(lambda rows: self._head(streams[rows]))
        logits = self._head(streams[batch.cu_seqlens[1:] - 1]).float()
        if arena.layout.draft_layers:
            layer = self.config.layers
            hooks.before_layer(layer)
            rows = self._draft.store_entries(batch.token_ids, streams, views[layer], bound)
            hooks.mixer_inputs(layer, rows.packed)
            hooks.cache_written(layer)
            hooks.after_layer(layer, lambda: streams)
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
            streams = write_streams(streams, output, factors)
            hooks.after_layer(layer, _value(streams))
        return streams

    def carried(self, arena: Arena) -> Tensor:
        """Return what each slot keeps of its last token for the draft layer, [slots, width]."""
        views = views_of(arena)[self.config.layers]
        return DraftRows.of_slots(views, self.weights.dtype).packed

    @torch.inference_mode()
    def draft_logits(self, hidden: Tensor, batch: Batch, arena: Arena) -> tuple[Tensor, Tensor]:
        """Return the draft layer's prediction after each of the batch's tokens; see Model. hidden:
        what was kept of the tokens before, as packed DraftRows. REQUIRES: one token of each
        sequence."""
        bound = BoundForward.of_entries(batch, self.config, self._angles)
        before = DraftRows.unpack(hidden, self.config)
        views = views_of(arena)[self.config.layers]
        final, kept = self._draft.guess(batch.token_ids, before, views, bound, self._room)
        if self._drafts is not None:
            logits = self._drafts.spread(product(final, self._drafts.head))
        else:
            logits = self.whole(product(final, self.weights.head)).float()
        return logits, kept.packed

    def whole(self, logits: Tensor) -> Tensor:
        """Return the logits of the whole vocabulary, given this rank's part."""
        return self._gather(logits)

    def beside(self) -> "tuple[Qwen4ExpModel, Notice]":
        """Return a model for forwards in parallel with this one's; see Model."""
        assembly = Assembly(self._drafts, self._reduce, self._gather)
        return Qwen4ExpModel(self.config, self.weights, assembly), lambda: None

    @torch.inference_mode()
    def fold(self, batch: Batch, inputs: Mapping[int, Tensor], arena: Arena) -> None:
        """Advance and store the states of a batch, for tokens computed before. inputs: by layer,
        the tensors received by hooks.mixer_inputs() for these tokens."""
        config = self.config
        plan, views = StatePlan.of(batch, config), views_of(arena)
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
        if arena.layout.draft_layers:
            kept = DraftRows.unpack(inputs[config.layers], config)
            self._draft.store_kept(kept, views[config.layers], plan.carry)

    @property
    def _draft(self) -> DraftLayer:
        if self.weights.draft is None:
            raise NoDraftLayer(
                "the arena has a draft layer, for which the model has no weights: serve it with "
                "--draft-layer off"
            )
        weights = self.weights
        return DraftLayer(self.weights.draft, weights.embedding, self.config, self._reduce)

    def _head(self, streams: Tensor) -> Tensor:
        """Return the logits [n, vocab] of some rows of the result of layers()."""
        config, weights = self.config, self.weights
        x = final_input(streams, weights.final, config.streams.count, config.norm_eps)
        return self._gather(product(x, weights.head))

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


def _value(streams: Tensor) -> Callable[[], Tensor]:
    return lambda: streams
