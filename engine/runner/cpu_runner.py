"""Runs plans on the CPU: a launch computes at once, and everything else is as on a GPU: a drawn
token stays on its lane, and the next forward takes it from there.

Owns the lanes and what it keeps of sequences; shares model and arena. Thread rule: one thread.
"""

import time
from dataclasses import dataclass, replace

import torch

from tasuki.engine.forward_plan import ForwardPlan
from tasuki.model.batch import Batch
from tasuki.model.grammar.grammar_compiler import GrammarCompiler
from tasuki.model.hooks import LayerHooks
from tasuki.model.ops.sampling.prompt_scores import HeadOf, ScoredRows
from tasuki.model.ops.sampling.reference import Sampled, sample
from tasuki.model.qwen3_5 import Qwen35Model
from tasuki.pycache.arena import Arena
from tasuki.pycache.copies import run_copies
from tasuki.transfer.windows.step_counter import StepCounter

from .base import Event
from .drawn_tokens import DrawnTokens
from .lane_adjustments import LaneAdjustments
from .prompt_scorer import score_prompts
from .sequence_states import ResolvedRows, SequenceStates


class LayerTicks(LayerHooks):
    """Ticks once a layer of any kind, so that windows leave while the rest still runs."""

    def __init__(self, steps: StepCounter, layers: int) -> None:
        """layers: of a forward."""
        self._steps = steps
        self._layers = layers

    def cache_written(self, layer: int) -> None:
        self._steps.tick()

    def after_layer(self, layer: int, branch: torch.Tensor, residual: torch.Tensor) -> None:
        if layer == self._layers - 1:
            self._steps.end_forward()


@dataclass(frozen=True)
class CpuForward:
    """`InFlightForward`, which has ended already."""

    drawn: DrawnTokens
    idle_seconds: float
    busy_seconds: float

    def result(self) -> DrawnTokens:
        return self.drawn


class CpuRunner:
    def __init__(
        self, model: Qwen35Model, arena: Arena, steps: StepCounter, grammars: GrammarCompiler
    ) -> None:
        self._model = model
        self._arena = arena
        self._steps = steps
        self._hooks = LayerTicks(steps, model.config.layers)
        self._sequences = SequenceStates(arena.slabs)
        self._adjustments = LaneAdjustments(model.config, grammars)
        self._drawn: dict[int, list[int]] = {}
        self._ended_at = time.perf_counter()

    @property
    def ticks(self) -> int:
        return self._steps.value

    def prepare(self) -> None:
        """The first request waits for nothing here."""

    def check_device(self) -> None:
        """A host that runs this is not lost."""

    def record_event(self) -> Event:
        return lambda: True

    def launch(self, plan: ForwardPlan) -> CpuForward:
        rows = self._sequences.apply(plan)
        self._adjustments.apply(plan)
        run_copies(self._arena, plan.copies)
        before, started = self._ended_at, time.perf_counter()
        results = self._compute(plan, rows) if len(rows) else DrawnTokens.nothing(0)
        self._ended_at = time.perf_counter()
        return CpuForward(results, started - before, self._ended_at - started)

    def _compute(self, plan: ForwardPlan, rows: ResolvedRows) -> DrawnTokens:
        batch = Batch.pack(self._sequences.slices(plan, rows, self._drawn))
        scored: dict[int, ScoredRows] = {}
        starts = dict(enumerate(batch.cu_seqlens.tolist()))

        def score(head: HeadOf) -> None:
            scored.update(score_prompts(plan, rows, starts, head, self._arena.bytes.device))

        scoring = (score,) if plan.scored else ()
        with torch.inference_mode():
            logits = self._model.forward(batch, self._arena, self._hooks, *scoring)
        results: list[Sampled | None] = [None] * len(rows)
        drawing = rows.num_sampled.nonzero()[0]
        lanes = rows.lanes[drawing].tolist()
        if lanes:
            drawn = sample(
                logits[drawing],
                [self._sequences.sampling(lane) for lane in lanes],
                rows.stops[drawing].tolist(),
                self._adjustments.scores(logits[drawing], lanes),
            )
            for row, lane, token in zip(drawing.tolist(), lanes, drawn, strict=True):
                results[row] = token
                self._drawn[lane] = [token.token]
                adjuster = self._adjustments.of(lane)
                if adjuster is not None:
                    adjuster.append(token.token)
        scores = {row: found.values() for row, found in scored.items()}
        return replace(DrawnTokens.of(results), scores=scores)
