"""Runs one planned forward: packs the batch, ticks the step counter a layer, draws the tokens."""

from collections.abc import Sequence

import torch

from ..model.batch import Batch, SequenceSlice
from ..model.qwen3_5 import Qwen35Model
from ..model.sampler import Sampled, sample
from ..pycache.arena import Arena
from ..transfer.steps import StepCounter
from .scheduler import Work


class LayerTicks:
    """Ticks once a layer of any kind, so that windows leave while later layers still run."""

    def __init__(self, steps: StepCounter) -> None:
        self._steps = steps

    def before_layer(self, layer: int) -> None:
        """Nothing to wait for: every input of this forward is in the arena."""

    def after_layer(self, layer: int, hidden: torch.Tensor) -> None:
        self._steps.tick()


class Runner:
    """Owns nothing but the call order; model and arena are shared with the rest of the engine
    loop."""

    def __init__(self, model: Qwen35Model, arena: Arena, steps: StepCounter) -> None:
        self._model = model
        self._arena = arena
        self._hooks = LayerTicks(steps)

    def run(self, work: Sequence[Work]) -> list[Sampled | None]:
        """One result a work item, None where the forward did not reach the last known token."""
        batch = Batch.pack([self._slice(item) for item in work])
        with torch.inference_mode():
            logits = self._model.forward(batch, self._arena, self._hooks)
        rows = [row for row, item in enumerate(work) if item.samples]
        results: list[Sampled | None] = [None] * len(work)
        if rows:
            drawn = sample(
                logits[rows],
                [work[row].request.sampling for row in rows],
                [work[row].stop for row in rows],
            )
            for row, token in zip(rows, drawn, strict=True):
                results[row] = token
        return results

    @staticmethod
    def _slice(item: Work) -> SequenceSlice:
        return SequenceSlice(
            token_ids=item.request.token_slice(item.start, item.stop),
            start=item.start,
            pages=item.active.lease.pages.tolist(),
            read_slot=item.active.read_slot,
            write_slot=item.active.write_slot,
            checkpoints=[(planned.position, slot) for planned, slot in item.checkpoints],
        )
