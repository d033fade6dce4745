"""What the recurrence of rows that verify drafts was given, and what a draft layer carries over
from them, kept until it shows how many of their tokens hold.

Such a row leaves its slots as they were (forward_plan.py, invariant 5). Storing the state behind
some of its tokens is the recurrence once more, over the same inputs and by the same arithmetic, one
token after another: so the state is bit for bit what as many decode steps would have left. Keeping
the inputs takes a hundredth of a state a token.

Owns the inputs of at most one row a lane, from its forward to its fold, or until its sequence
leaves. Thread rule: the runner's.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from tasuki.engine.forward_plan import Fold, PlanError
from tasuki.model.batch import Batch, SequenceSlice
from tasuki.model.hooks import LayerHooks
from tasuki.model.qwen3_5 import Qwen35Model
from tasuki.pycache.arena import Arena


@dataclass(frozen=True)
class HeldRow:
    """slice: as it was computed. write_slot: where its state is to go. inputs: [its tokens, widths]
    by layer that keeps a state."""

    slice: SequenceSlice
    write_slot: int
    inputs: Mapping[int, Tensor]


@dataclass
class InputsOfRows(LayerHooks):
    """Copies of what the mixers of `layers` are given of these rows, beside other hooks. whole: all
    rows that the layer numbered so is given."""

    hooks: LayerHooks
    layers: frozenset[int]
    rows: Tensor
    whole: int
    inputs: dict[int, Tensor] = field(default_factory=dict)
    hidden: Tensor | None = None

    def before_layer(self, layer: int) -> None:
        self.hooks.before_layer(layer)

    def mixer_inputs(self, layer: int, projected: Tensor) -> None:
        self.hooks.mixer_inputs(layer, projected)
        if layer == self.whole:
            self.hidden = projected
        if layer in self.layers and len(self.rows):
            self.inputs[layer] = projected[self.rows]

    def cache_written(self, layer: int) -> None:
        self.hooks.cache_written(layer)

    def after_layer(self, layer: int, branch: Tensor, residual: Tensor) -> None:
        self.hooks.after_layer(layer, branch, residual)


class HeldInputs:
    def __init__(self) -> None:
        self._rows: dict[int, HeldRow] = {}

    def __len__(self) -> int:
        return len(self._rows)

    def hold(self, lane: int, row: HeldRow) -> None:
        """In place of what the lane had."""
        self._rows[lane] = row

    def drop(self, lanes: Iterable[int]) -> None:
        for lane in lanes:
            self._rows.pop(lane, None)

    def fold(self, folds: Iterable[Fold], model: Qwen35Model, arena: Arena) -> None:
        """Store what they ask for. Raises PlanError."""
        slices: list[SequenceSlice] = []
        inputs: list[Mapping[int, Tensor]] = []
        for fold in folds:
            held = self._rows.pop(fold.lane, None)
            if held is None or not 0 < fold.count <= len(held.slice.token_ids):
                raise PlanError(
                    f"{fold.count} tokens of lane {fold.lane} are to be folded, which holds "
                    f"{0 if held is None else len(held.slice.token_ids)}"
                )
            tokens = held.slice.token_ids[: fold.count]
            slices.append(replace(held.slice, token_ids=tokens, write_slot=held.write_slot))
            inputs.append({layer: x[: fold.count] for layer, x in held.inputs.items()})
        if slices:
            together = {layer: torch.cat([some[layer] for some in inputs]) for layer in inputs[0]}
            model.fold(Batch.pack(slices), together, arena)
