"""A model with a block drafter beside it.

BlockDraftedModel runs the target, and collects the streams of some of its layers on the way. Then
it stores the drafter's keys and values of the forward's tokens, in layers behind the target's. So
pages move, are shared and are kept with the drafter's part in them. A drafter carries nothing from
forward to forward but pages: the hidden state before a proposal has width 0.

A proposal reads pages and writes nothing. So proposals never change the cache.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional

from tasuki.model.config import ModelConfig
from tasuki.model.drafts import DraftHead, DraftStart
from tasuki.model.forward import Batch, LayerHooks
from tasuki.model.ops.linear.reference import product
from tasuki.model.ops.sampling.prompt_scores import HeadOf
from tasuki.model.ops.sampling.reference import sample
from tasuki.model.ops.sampling.slice import Slice
from tasuki.model.protocol import Model
from tasuki.model.weights.layers import Weights
from tasuki.model.weights.matrix import Matrix
from tasuki.pycache.arena import Arena
from tasuki.pycache.layout import PAGE_TOKENS
from tasuki.utils.signatures import Notice

from .layers import BlockPlace, DrafterLayers, places_of
from .weights import load_drafter


def beside_drafter(model: Model, folder: str | None, drafts: DraftHead | None = None) -> Model:
    """Return the model with the block drafter of its config beside it; unchanged for None. folder:
    the drafter's. drafts: the tokens allowed as drafts; None: any token. Raises WeightsError,
    ModelConfigError."""
    shape = model.config.drafter
    if folder is None or shape is None:
        return model
    weights = load_drafter(Path(folder), shape, model.weights.dtype)
    return BlockDraftedModel(model, DrafterLayers(shape, weights), drafts)


class StreamsOfLayers(LayerHooks):
    """Hooks to collect the residual streams of some layers, in addition to other hooks."""

    def __init__(self, hooks: LayerHooks, layers: Sequence[int]) -> None:
        self._hooks = hooks
        self._layers = layers
        self._found: dict[int, Tensor] = {}

    @property
    def side_by_side(self) -> Tensor:
        """Return all streams [T, layers * hidden]. REQUIRES: the forward has run."""
        return torch.cat([self._found[layer] for layer in self._layers], dim=-1)

    def before_layer(self, layer: int) -> None:
        self._hooks.before_layer(layer)

    def mixer_inputs(self, layer: int, projected: Tensor) -> None:
        self._hooks.mixer_inputs(layer, projected)

    def cache_written(self, layer: int) -> None:
        self._hooks.cache_written(layer)

    def after_layer(self, layer: int, stream: Callable[[], Tensor]) -> None:
        if layer in self._layers:
            # Valid during this call only.
            self._found[layer] = stream().clone()
        self._hooks.after_layer(layer, stream)


class BlockDraftedModel:
    """`Model` with a block drafter, see drafts.BlockModel. Calls on one arena come from one thread.
    Owns no weights of the target."""

    def __init__(
        self, model: Model, layers: DrafterLayers, drafts: DraftHead | None = None
    ) -> None:
        """layers: the drafter's. drafts: the tokens allowed as drafts; None: any token. REQUIRES:
        the model's config has a drafter of the layers' shape."""
        assert model.config.drafter is not None, "the config has no drafter"
        self._model = model
        self._layers = layers
        self._drafts = drafts
        self._shape = model.config.drafter

    @property
    def config(self) -> ModelConfig:
        return self._model.config

    @property
    def weights(self) -> Weights:
        return self._model.weights

    @property
    def draft_rows(self) -> Matrix | None:
        return None if self._drafts is None else self._drafts.head

    @property
    def draft_ids(self) -> Tensor | None:
        return None if self._drafts is None else self._drafts.ids

    @property
    def own_slice(self) -> Slice | None:
        return self._model.own_slice

    @torch.inference_mode()
    def forward(
        self,
        batch: Batch,
        arena: Arena,
        hooks: LayerHooks,
        score: Callable[[HeadOf], None] | None = None,
    ) -> Tensor:
        streams = StreamsOfLayers(hooks, self._shape.target_layers)
        logits = self._model.forward(batch, arena, streams, score)
        self._store(batch, streams.side_by_side, arena, hooks)
        return logits

    def _store(self, batch: Batch, streams: Tensor, arena: Arena, hooks: LayerHooks) -> None:
        """Write the drafter's keys and values of the batch's tokens. streams: as for
        DrafterLayers.context()."""
        context = self._layers.context(streams)
        turns = self._layers.turns(batch.positions)
        lengths = batch.cu_seqlens.diff()
        owners = torch.arange(len(lengths)).repeat_interleave(lengths)
        places = places_of(batch.positions, owners, batch.page_table)
        first = self.config.layers
        for own in range(self._shape.layers):
            layer = first + own
            hooks.before_layer(layer)
            if not own:
                hooks.mixer_inputs(layer, context[:, :0])
            self._layers.write(own, context, arena.view(layer, "kv"), places, turns)
            hooks.cache_written(layer)
            hooks.after_layer(layer, lambda: context)

    def fold(self, batch: Batch, inputs: Mapping[int, Tensor], arena: Arena) -> None:
        self._model.fold(batch, inputs, arena)

    def carried(self, arena: Arena) -> Tensor:
        return torch.empty(arena.slabs, 0, dtype=self.weights.dtype)

    def draft_logits(self, hidden: Tensor, batch: Batch, arena: Arena) -> tuple[Tensor, Tensor]:
        return self._model.draft_logits(hidden, batch, arena)

    @torch.inference_mode()
    def draft_blocks(self, arena: Arena, starts: Sequence[DraftStart]) -> list[tuple[int, ...]]:
        """Draft tokens in one pass over all blocks, see drafts.BlockModel."""
        if not starts:
            return []
        drawn = sample(
            self.block_logits(arena, starts),
            [start.sampling for start in starts for _ in range(start.count)],
            [start.position + place for start in starts for place in range(1, start.count + 1)],
        )
        tokens = iter(drawn)
        return [tuple(next(tokens).token for _ in range(start.count)) for start in starts]

    def block_logits(self, arena: Arena, starts: Sequence[DraftStart]) -> Tensor:
        """Return the logits of all wanted drafts, start by start, [drafts, vocab] float32."""
        blocks: list[BlockPlace] = []
        ids: list[int] = []
        positions: list[int] = []
        masks: list[int] = []
        for start in starts:
            pages = torch.tensor(start.pages[: -(-start.position // PAGE_TOKENS)])
            blocks.append(BlockPlace(len(ids), 1 + start.count, start.position, pages))
            masks += range(len(ids) + 1, len(ids) + 1 + start.count)
            ids += [start.token, *[self._shape.mask_id] * start.count]
            positions += range(start.position, start.position + 1 + start.count)
        weights, first = self.weights, self.config.layers
        embedded = functional.embedding(torch.tensor(ids), weights.embedding)
        pages_of_layers = [arena.view(first + own, "kv") for own in range(self._shape.layers)]
        turns = self._layers.turns(torch.tensor(positions))
        hidden = self._layers.propose(embedded, blocks, pages_of_layers, turns)[masks]
        if self._drafts is not None:
            return self._drafts.spread(product(hidden, self._drafts.head))
        return product(hidden, weights.head).float()

    def whole(self, logits: Tensor) -> Tensor:
        return self._model.whole(logits)

    def beside(self) -> tuple[Model, Notice]:
        model, prepare = self._model.beside()
        return BlockDraftedModel(model, self._layers.beside(), self._drafts), prepare
