"""A runner of forward plans without a device: a forward takes no time, or a given time. Plans,
batch indices and results equal those of other runners; the arena is never touched.

Owns the last token of every batch index, and the simulated device's end time. Thread rule: the
engine loop's thread. Layers of a forward with a duration tick on a separate thread.
"""

import threading
import time
from dataclasses import dataclass
from queue import SimpleQueue

import numpy as np

from tasuki.engine.forward_plan import ForwardPlan, Ints
from tasuki.engine.runner.base import Event, SampledTokens
from tasuki.engine.runner.rows import ResolvedRows, SequenceStates
from tasuki.transfer.chunks.chunk import StepCounter
from tasuki.utils.system import name_this_thread

from .step_cost import StepCost
from .tokens import NextToken, next_token


@dataclass(frozen=True)
class FreeForward:
    """A launched forward of the simulated device: an `InFlightForward`. ends_at: end time on the
    monotonic clock."""

    sampled: SampledTokens
    idle_seconds: float
    busy_seconds: float
    ends_at: float

    @property
    def has_ended(self) -> bool:
        return time.monotonic() >= self.ends_at

    def result(self) -> SampledTokens:
        left = self.ends_at - time.monotonic()
        if left > 0:
            time.sleep(left)
        return self.sampled


class FreeRunner:
    def __init__(
        self,
        batch_indices: int,
        vocabulary: int,
        cost: StepCost,
        ticks: "LayerTicks | None",
        answers: NextToken = next_token,
    ) -> None:
        """Set up the runner. ticks: counter of a forward's layers; None: layers are not counted.
        answers: function returning the sampled tokens."""
        self._answers = answers
        self._sequences = SequenceStates(batch_indices)
        self._vocabulary = vocabulary
        self._cost = cost
        self._ticks = ticks
        self._last = np.zeros(batch_indices, dtype=np.int64)
        self._ends_at = time.monotonic()

    @property
    def ticks(self) -> int:
        return 0 if self._ticks is None else self._ticks.launched

    def prepare(self) -> None:
        """Do nothing, because the first request needs no preparation in this runner."""

    def check_device(self) -> None:
        """Do nothing, because there is no device."""

    def record_event(self) -> Event:
        ends_at = self._ends_at
        return lambda: time.monotonic() >= ends_at

    def launch(self, plan: ForwardPlan) -> FreeForward:
        rows = self._sequences.apply(plan)
        now = time.monotonic()
        idle, begins = max(0.0, now - self._ends_at), max(now, self._ends_at)
        if not len(rows):
            return FreeForward(SampledTokens.nothing(0), idle, 0.0, begins)
        decoding = int(rows.decodes.sum())
        prompt_tokens = int(rows.lengths.sum()) - decoding
        self._ends_at = begins + self._cost.of(decoding, prompt_tokens)
        sampled = self._draw(plan, rows)
        if self._ticks is not None:
            self._ticks.forward(begins, self._ends_at)
        return FreeForward(sampled, idle, self._ends_at - begins, self._ends_at)

    def _draw(self, plan: ForwardPlan, rows: ResolvedRows) -> SampledTokens:
        """Return one token for every row, including rows without sampling."""
        last = self._last[rows.batch_indices]
        from_plan = np.flatnonzero(~rows.at_index)
        if len(from_plan):
            ends: Ints = rows.tokens_at[from_plan] + rows.lengths[from_plan] - 1
            last[from_plan] = plan.tokens[ends]
        tokens = self._answers(last, rows.stops.astype(np.int64), self._vocabulary)
        self._last[rows.batch_indices] = tokens
        return SampledTokens(tokens.astype(np.int32), np.zeros(len(tokens)), np.ones(len(tokens)))


class LayerTicks:
    """The step counter's ticks, one for each layer of a forward. Ticks are spread evenly over a
    forward with a duration; otherwise all come at its launch. launched: the counter's value after
    all launched forwards have ended."""

    def __init__(self, steps: StepCounter, layers: int, *, timed: bool) -> None:
        """Set up the ticks. timed: True if forwards take time; then a separate thread ticks, like a
        device's events."""
        self._steps = steps
        self._layers = layers
        self._forwards: SimpleQueue[tuple[float, float]] | None = SimpleQueue() if timed else None
        self.launched = steps.value
        if timed:
            threading.Thread(target=self._run, name="tasuki-ticks", daemon=True).start()

    def forward(self, begins: float, ends: float) -> None:
        """Tick once for each layer of a forward. begins, ends: times of the forward on the
        monotonic clock."""
        self.launched += self._layers
        if self._forwards is not None:
            self._forwards.put((begins, ends))
            return
        for _ in range(self._layers):
            self._steps.tick()
        self._steps.end_forward()

    def _run(self) -> None:
        name_this_thread()
        assert self._forwards is not None
        while True:
            begins, ends = self._forwards.get()
            for layer in range(1, self._layers + 1):
                left = begins + (ends - begins) * layer / self._layers - time.monotonic()
                if left > 0:
                    time.sleep(left)
                self._steps.tick()
            self._steps.end_forward()
