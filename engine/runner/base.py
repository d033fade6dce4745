"""Runs planned forwards: packs the batch, ticks the step counter a layer, draws the tokens.

Launching and landing are apart, so that the next forward is planned while this one runs. Here, on
the CPU, a launch computes at once, and everything else is as on a GPU: a drawn token stays on its
lane until it has landed, and the next forward takes it from there.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from tasuki.engine.forward_plan import Work
from tasuki.model.batch import Batch, SequenceSlice
from tasuki.model.ops.sampling.reference import Sampled, sample
from tasuki.model.qwen3_5 import Qwen35Model
from tasuki.pycache.arena import Arena
from tasuki.transfer.windows.step_counter import StepCounter


class Flight(Protocol):
    """A forward that was launched."""

    @property
    def work(self) -> Sequence[Work]: ...

    @property
    def idle_seconds(self) -> float:
        """From the end of the forward before to the start of this one, on the device. REQUIRES: it
        has landed."""

    def land(self) -> list[Sampled | None]:
        """Wait for the end. One result a work item, None where no token was to be drawn.

        Raises what the forward raised. Call it once.
        """


class Runner(Protocol):
    """Launches are run in order, each after the one before and after every copy in the arena that
    was asked for before it."""

    @property
    def ticks(self) -> int:
        """The step counter's value once all that was launched has ended."""

    def prepare(self) -> None:
        """Once, on the thread that will launch, before it does: what else the first request would
        wait for."""

    def launch(self, work: Sequence[Work]) -> Flight:
        """Start a forward. Raises what is wrong with it already; then nothing is in flight of
        it."""

    def passed(self) -> "Passed":
        """Whether all that was launched or copied until now has ended; ask the result."""


class Passed(Protocol):
    def __call__(self) -> bool: ...


class LayerTicks:
    """Ticks once a layer of any kind, so that windows leave while the rest still runs."""

    def __init__(self, steps: StepCounter, layers: int) -> None:
        """layers: of a forward."""
        self._steps = steps
        self._layers = layers

    def before_layer(self, layer: int) -> None:
        """Nothing to wait for: every input of this forward is in the arena."""

    def cache_written(self, layer: int) -> None:
        self._steps.tick()

    def after_layer(self, layer: int, branch: torch.Tensor, residual: torch.Tensor) -> None:
        if layer == self._layers - 1:
            self._steps.end_forward()


@dataclass(frozen=True)
class HostFlight:
    work: Sequence[Work]
    drawn: list[Sampled | None]
    idle_seconds: float

    def land(self) -> list[Sampled | None]:
        return self.drawn


class HostRunner:
    """Owns the lanes; model and arena are shared with the rest of the engine loop."""

    def __init__(self, model: Qwen35Model, arena: Arena, steps: StepCounter) -> None:
        self._model = model
        self._arena = arena
        self._steps = steps
        self._hooks = LayerTicks(steps, model.config.layers)
        self._lanes: dict[int, int] = {}
        self._ended_at = time.perf_counter()

    @property
    def ticks(self) -> int:
        return self._steps.value

    def prepare(self) -> None:
        """The first request waits for nothing here."""

    def passed(self) -> Passed:
        return lambda: True

    def launch(self, work: Sequence[Work]) -> HostFlight:
        idle = time.perf_counter() - self._ended_at
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
                self._lanes[work[row].lane] = token.token
        self._ended_at = time.perf_counter()
        return HostFlight(work, results, idle)

    def _slice(self, item: Work) -> SequenceSlice:
        tokens = item.known_tokens
        if len(tokens) < item.stop - item.start:
            tokens.append(self._lanes[item.lane])
        return work_slice(item, tokens)


def work_slice(item: Work, tokens: Sequence[int]) -> SequenceSlice:
    return SequenceSlice(
        token_ids=tokens,
        start=item.start,
        pages=item.active.lease.pages.tolist(),
        read_slot=item.read_slot,
        write_slot=item.write_slot,
        checkpoints=[(planned.position, slot) for planned, slot in item.checkpoints],
    )
