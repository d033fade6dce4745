"""A Kimi Linear model: its forwards over an arena.

KimiModel owns the weights. A forward is a function of (batch, arena), so one model serves several
arenas. Calls on one arena come from one thread. The residual stream is a pair (branch, residual),
whose sum the next norm forms. There is no draft layer.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NoReturn

import torch
from torch import Tensor

from tasuki.model.drafts import NoDraftLayer
from tasuki.model.forward import Batch, Gather, LayerHooks, PicturesUnsupported, one_rank
from tasuki.model.ops.sampling.prompt_scores import HeadOf
from tasuki.model.ops.sampling.slice import Slice
from tasuki.model.weights.matrix import Matrix
from tasuki.pycache.arena import Arena
from tasuki.utils.signatures import Notice

from .config import KimiConfig
from .operators import KimiBackend, KimiOperators
from .stack import fold_states, run_layers, views_of
from .weights import KimiWeights


class KimiModel:
    """`Model` of this family."""

    def __init__(
        self,
        config: KimiConfig,
        weights: KimiWeights,
        backend: KimiBackend | None = None,
        gather: Gather = one_rank,
    ) -> None:
        """gather: joins the ranks' logits if this rank computes only a part of the vocabulary."""
        self.config = config
        self.weights = weights
        self.backend = backend or KimiBackend(config)
        self._gather = one_rank if config.head_rows is None else gather

    @property
    def draft_ids(self) -> Tensor | None:
        return None

    @property
    def draft_rows(self) -> Matrix | None:
        return None

    @property
    def own_slice(self) -> Slice | None:
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
        found = self.run(batch, arena, hooks)
        if score is not None:
            score(found.head)
        return found.head(batch.cu_seqlens[1:] - 1).float()

    def run(self, batch: Batch, arena: Arena, hooks: LayerHooks) -> "KimiForward":
        """Run a batch through all layers. Raises PicturesUnsupported."""
        if batch.pictures:
            raise PicturesUnsupported("the model sees no pictures: send text alone")
        operators = self.backend.bind(batch)
        views = views_of(arena, self.config)
        branch, residual = run_layers(batch.token_ids, self.weights, operators, views, hooks)
        return KimiForward(self, branch, residual, operators)

    @torch.inference_mode()
    def fold(self, batch: Batch, inputs: Mapping[int, Tensor], arena: Arena) -> None:
        views = views_of(arena, self.config)
        fold_states(inputs, self.weights, self.backend.bind(batch), views)

    def carried(self, arena: Arena) -> NoReturn:
        raise _no_draft_layer()

    def draft_logits(self, hidden: Tensor, batch: Batch, arena: Arena) -> NoReturn:
        raise _no_draft_layer()

    def whole(self, logits: Tensor) -> Tensor:
        return self._gather(logits)

    def beside(self) -> "tuple[KimiModel, Notice]":
        # A back end owns memory for gathered rows, so each thread has one of its own.
        return KimiModel(self.config, self.weights, self.backend.beside(), self._gather), _nothing


@dataclass(frozen=True)
class KimiForward:
    """The result of a batch. branch, residual [T, hidden]: the residual stream after the last
    layer, not yet added."""

    model: KimiModel
    branch: Tensor
    residual: Tensor
    operators: KimiOperators

    def head(self, rows: Tensor) -> Tensor:
        """Return the logits [n, vocab] after these rows of the forward. rows: [n] int64."""
        weights = self.model.weights
        logits, _ = self.operators.norm_project(
            self.branch[rows], self.residual[rows], weights.norm, weights.head
        )
        return self.model.whole(logits)


def _no_draft_layer() -> NoDraftLayer:
    return NoDraftLayer("the family has no draft layer: serve it with --draft-layer off")


def _nothing() -> None:
    return
