"""A forward in flight on a GPU: its results on their way, and the ticks of its layers.

`LayerEvents` owns the thread that ticks the step counter (cpp_cache/dataplane/stream_ticks.h): the
forward's thread only records, and that thread never holds the interpreter's lock. Hooks belong to
the engine loop's thread. Only CudaForward.result() waits for the GPU.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tasuki.model.forward import LayerHooks
from tasuki.model.ops.sampling.prompt_scores import ScoredRows
from tasuki.model.ops.sampling.reference import Sampled
from tasuki.pycache._cpp_cache import CudaContext, StreamTicks
from tasuki.transfer.windows.window import StepCounter

from .base import DrawnTokens
from .device_batch import take_over
from .draft_rows import VerifiedRows
from .eager_sampler import TopTokens


class LayerEvents(LayerHooks):
    """Ticks the step counter when a GPU has written a layer's KV and state.

    Owns what waits for the event behind each layer's writes and ticks, on a thread of its own that
    never holds the interpreter's lock (cpp_cache/dataplane/stream_ticks.h): the thread of the
    forward only records. Thread rule: hooks on the engine loop's thread; the thread there is the
    only one that ticks the counter.

    launched: the counter's value once all recorded events passed.
    """

    def __init__(self, steps: StepCounter, layers: int) -> None:
        """layers: of a forward."""
        self._steps = steps
        self._layers = layers
        self.launched = steps.value

    @cached_property
    def _ticks(self) -> StreamTicks:
        # Of the device that the forward's thread has, which may not be the one that built this.
        return StreamTicks(CudaContext(torch.cuda.current_device()), self._steps)

    def cache_written(self, layer: int) -> None:
        self.launched += 1
        self._ticks.tick_behind(torch.cuda.current_stream().cuda_stream)

    def after_layer(self, layer: int, branch: Tensor, residual: Tensor) -> None:
        if layer == self._layers - 1:
            self._ticks.end_behind(torch.cuda.current_stream().cuda_stream)


@dataclass(frozen=True)
class DrawnPart:
    """Tokens on their way, of the plan's rows of these numbers. tops: the likeliest of some."""

    rows: NDArray[np.int64]
    drawn: torch.Tensor
    tops: Sequence[TopTokens] = ()


@dataclass(frozen=True)
class ForwardEnds:
    """Of a forward: once all was drawn, and once what was guessed behind it was."""

    drawn: torch.cuda.Event
    guessed: torch.cuda.Event


@dataclass(frozen=True)
class CudaForward:
    """`InFlightForward` of a plan with so many rows. parts: a row of two is what the later one
    has. verified: of rows with drafts. guessed: drafts that are on the lanes of some rows once the
    next forward begins; it ends before, and is busy with those of the one before. scores: on their
    way, by rows."""

    rows: int
    parts: Sequence[DrawnPart]
    verified: Sequence[VerifiedRows]
    guessed: Mapping[int, int]
    scores: Mapping[int, ScoredRows]
    before: ForwardEnds
    started: torch.cuda.Event
    ended: torch.cuda.Event

    @property
    def has_ended(self) -> bool:
        return bool(self.ended.query())  # type: ignore[no-untyped-call]

    @property
    def idle_seconds(self) -> float:
        return float(self.before.guessed.elapsed_time(self.started)) / 1000

    @property
    def busy_seconds(self) -> float:
        guessing = self.before.drawn.elapsed_time(self.before.guessed)
        return float(guessing + self.started.elapsed_time(self.ended)) / 1000

    def result(self) -> DrawnTokens:
        self.ended.synchronize()
        drawn = DrawnTokens.nothing(self.rows)
        for part in self.parts:
            take_over(part.drawn, drawn, part.rows)
        tops = {
            row: top for part in self.parts for tokens in part.tops for row, top in tokens.of_rows()
        }
        behind: dict[int, tuple[Sampled, ...]] = {}
        for verified in self.verified:
            first, more = verified.put(drawn)
            tops.update(first)
            behind.update(more)
        scores = {row: scored.values() for row, scored in self.scores.items()}
        return replace(drawn, tops=tops, scores=scores, behind=behind, on_lane=self.guessed)
