"""Cases of a step with drafts through all GDN layers, compared with plain decode steps of as many
sequences. A step with drafts first folds the previous step's accepted tokens into the recurrent
state. Both kinds of step read a state once and write it once."""

from collections.abc import Iterator
from functools import partial

from torch import Tensor

from tasuki.model.forward import FoldRows
from tasuki.model.ops.gdn.decode import gdn_decode
from tasuki.model.ops.gdn.verify.fold import fold_columns
from tasuki.model.ops.gdn.verify.kept_inputs import KeptTurns, kept_bytes
from tasuki.model.ops.gdn.verify.rows import RowFolds, gdn_verify
from tasuki.model.weights.layers import GdnWeights

from .case import Case, Stage, turns_to_overflow
from .gdn import gdn_weights, slots

_TOKENS = 4
_HELD = 3
"""Tokens of each sequence folded into its recurrent state by a step: about the number accepted at
.80/.75/.72."""
_FIRST = 2048
"""Position of a row's first token."""
_MOST = 1.15
"""Largest accepted ratio: the time of a step with drafts for its states over a plain step's."""


def cases(stage: Stage) -> Iterator[Case]:
    weights = gdn_weights(stage)
    for batch in (1, 16, 64):
        if 2 * batch <= stage.slabs:
            yield _case(stage, weights, batch)


def _case(stage: Stage, weights: GdnWeights, batch: int) -> Case:
    config, conv_views = stage.model, stage.arena.views("conv")
    states = [*zip(conv_views, stage.arena.views("ssm"), strict=True)]
    layers = len(states)
    state = layers * batch * config.value_heads * config.value_dim * config.key_dim * 4
    conv = layers * batch * config.conv_channels * (config.conv_width - 1) * 2
    width = config.conv_channels + config.value_heads * (config.value_dim + 2)
    projected = stage.random(batch * _TOKENS, width)
    kept = KeptTurns.empty(config, layers, batch, _TOKENS, projected.dtype, stage.device)
    for part in (kept.raw, kept.mixed, kept.scalars):
        part.zero_()
    turn = stage.ints([0])
    counts, rows = stage.ints([_TOKENS] * batch), stage.rows(batch)
    positions = stage.ints(list(range(_FIRST, _FIRST + _TOKENS)) * batch)
    held, places = stage.ints([_HELD] * batch), stage.ints(list(range(batch)))
    runs = [
        (slots(stage, batch, turn), slots(stage, batch, turn + 1))
        for turn in range(turns_to_overflow(2 * state))
    ]

    def decode(read: Tensor, write: Tensor) -> list[Tensor]:
        return [
            gdn_decode(
                projected[:batch], weights, config, *views, read, write, rows, positions[:batch]
            )
            for views in states
        ]

    def verify(read: Tensor, write: Tensor) -> list[Tensor]:
        # Fold of the previous step; its states are in `read`.
        columns = FoldRows(places, held, read, write)
        fold_columns(kept.of(1), config, conv_views, columns)
        folds = RowFolds(held, places, read)
        return [
            gdn_verify(
                projected,
                weights,
                config,
                *views,
                write,
                counts,
                rows,
                positions,
                kept.layer(layer),
                turn,
                folds,
            )
            for layer, views in enumerate(states)
        ]

    inputs = batch * _TOKENS * kept_bytes(config, layers, projected.element_size())
    return Case(
        f"gdn of all layers, {batch} rows of {_TOKENS} tokens, and their fold",
        [partial(verify, *run) for run in runs],
        # Kept values are written, and read for this step and for the next one's fold.
        bytes=2 * state + 2 * conv + 3 * inputs,
        captured={"plain steps": [partial(decode, *run) for run in runs]},
        ratios={"plain steps": 1 / _MOST},
    )
