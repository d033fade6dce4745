"""The part of a prompt behind a load, computed while that goes on.

Owns the thread of these forwards (early/early_step.py), one at a time, and what is held by the
one that runs; the load is the tiers'. Thread rule: the engine loop.
Invariants:
1. A layer is computed once the load has brought all that it reads. That this is what was written
   shows only at the load's end: until then nothing that was computed is in the tree, drawn or
   given to anybody, and where the load fails it is forgotten with the allocation.
2. It writes pages and slots of the allocation alone, which are nobody else's before it has ended.
"""

from dataclasses import dataclass
from typing import TypedDict

from tasuki.engine.request import Ahead, PlannedCheckpoint, Request
from tasuki.engine.runner.logits import logit_adjuster
from tasuki.engine.scheduling.checkpoints import plan_checkpoints
from tasuki.engine.tiers.copy_job import LoadBarrier
from tasuki.model.forward import SequenceSlice
from tasuki.model.grammar.grammar_compiler import GrammarCompiler
from tasuki.model.ops.sampling.logit_adjustments import LogitAdjuster, TokensBefore
from tasuki.pycache._cpp_cache import Allocation
from tasuki.pycache.prefix_cache import HybridPrefixCache

from .early_step import EarlyStep, EarlySteps


class BehindCounts(TypedDict):
    """begun: forwards; busy: that were not begun since another one ran; joined: whose tokens
    counted; dropped: whose load failed, or that broke."""

    begun: int
    busy: int
    joined: int
    dropped: int


@dataclass(frozen=True)
class PrefillBehind:
    """kept: checkpoints that it stores, each with its slot. stop: tokens of the request behind it.
    is_alone: whether the state that it began with is intact behind it, whatever became of it."""

    step: EarlyStep
    stop: int
    kept: tuple[tuple[PlannedCheckpoint, int], ...]
    is_alone: bool

    @property
    def ended(self) -> bool:
        return self.step.ended

    def wait(self, seconds: float) -> None:
        """Until it has ended, at most so long."""
        self.step.wait(seconds)

    @property
    def spoiled(self) -> bool:
        """Whether it wrote over what was loaded and is of no use itself."""
        return not self.is_alone and not self.step.computed


class PrefillsBehind:
    def __init__(
        self,
        cache: HybridPrefixCache,
        steps: EarlySteps,
        grammars: GrammarCompiler,
        most_tokens: int,
    ) -> None:
        """most_tokens: of a forward. grammars: the engine's."""
        self._cache = cache
        self._steps = steps
        self._grammars = grammars
        self._most = most_tokens
        self.counts: BehindCounts = {"begun": 0, "busy": 0, "joined": 0, "dropped": 0}

    def prepare(self) -> None:
        """May take seconds on a GPU."""
        self._steps.prepare()

    def close(self) -> None:
        """Cancel what runs and wait for its end."""
        self._steps.close()

    def begin(
        self, request: Request, allocation: Allocation, barrier: LoadBarrier, *, draws: bool
    ) -> PrefillBehind | None:
        """Of the tokens behind the allocation's load, as many as a forward takes; None where there
        are none, or another one runs. draws: whether the token behind the last one may be drawn
        here; else the last one is left. REQUIRES: nothing of the load is awaited or landed yet."""
        assert allocation.load is not None
        start = allocation.load.boundary
        is_drawn = draws and request.sampling.draws and request.scoring is None
        stop = min(request.length if is_drawn else request.length - 1, start + self._most)
        is_drawn = is_drawn and stop == request.length
        if stop <= start:
            return None
        if not self._steps.is_free:
            self.counts["busy"] += 1
            return None
        kept = self._checkpoints(request, allocation, start, stop)
        slots = allocation.working_slots
        step = EarlyStep(
            barrier,
            SequenceSlice(
                token_ids=request.token_slice(start, stop),
                start=start,
                pages=allocation.pages.tolist(),
                read_slot=slots[0],
                write_slot=slots[-1],
                checkpoints=[(planned.position, slot) for planned, slot in kept],
            ),
            request.sampling if is_drawn else None,
            self._adjuster(request) if is_drawn else None,
        )
        self._steps.begin(step)
        self.counts["begun"] += 1
        return PrefillBehind(step, stop, kept, len(slots) > 1)

    def _checkpoints(
        self, request: Request, allocation: Allocation, start: int, stop: int
    ) -> tuple[tuple[PlannedCheckpoint, int], ...]:
        """Those up to `stop` for which there are slots."""
        found = []
        for planned in plan_checkpoints(
            request.length,
            start,
            allocation.match,
            request.marks,
            request.branch_points,
            request.message_end,
        ):
            if planned.position <= stop:
                slot = self._cache.take_checkpoint_slot(allocation)
                if slot is not None:
                    found.append((planned, slot))
        return tuple(found)

    def _adjuster(self, request: Request) -> LogitAdjuster | None:
        sampling = request.sampling
        if not sampling.adjusts:
            return None
        before = TokensBefore.of(sampling, request.prompt, request.output)
        return logit_adjuster(sampling, before, self._steps.model_config, self._grammars)

    def take(self, behind: PrefillBehind, allocation: Allocation) -> Ahead | None:
        """What the request goes on from; its checkpoints are in the tree. REQUIRES: the load has
        landed, and this has ended."""
        if not behind.step.computed:
            self.counts["dropped"] += 1
            return None
        self.counts["joined"] += 1
        for planned, slot in behind.kept:
            self._cache.insert_midway(allocation, planned.position, slot, planned.kind)
        return Ahead(behind.stop, behind.step.sampled)

    def drop(self) -> None:
        """A forward is of no use: its load failed, or nobody wants it."""
        self.counts["dropped"] += 1
