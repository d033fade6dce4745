"""The engine's end of its runner: what was scheduled goes in, its tokens come back beside it.

Owns the order of everything that happens in the arena: forwards, the cache's copies, events. Thread
rule: the engine loop.
Invariant: a copy that the cache decided, and a fold, run before whatever is launched or recorded
here next. So a forward never reads bytes that were to be stored first, and no other node may read
or write an id that a copy or a fold still awaits: it is given the id behind an event.
"""

from dataclasses import dataclass

from tasuki.pycache.prefix_cache import HybridPrefixCache

from .forward_plan import Fold
from .progress import ProgressTable
from .runner.base import Event, InFlightForward, Runner
from .scheduling.forward_planner import ForwardPlanner
from .scheduling.scheduled_forward import ScheduledForward


@dataclass(frozen=True)
class LaunchedForward:
    scheduled: ScheduledForward
    in_flight: InFlightForward


class PlanStream:
    def __init__(self, runner: Runner, cache: HybridPrefixCache, progress: ProgressTable) -> None:
        """progress: of the sequences that are to be launched."""
        self._runner = runner
        self._cache = cache
        self._planner = ForwardPlanner(progress)
        self._folds: tuple[Fold, ...] = ()

    @property
    def ticks(self) -> int:
        """The step counter's value once all that was launched has ended."""
        return self._runner.ticks

    def prepare(self) -> None:
        """Once, on the thread that will launch, before it does."""
        self._runner.prepare()

    def check_device(self) -> None:
        """After a forward has failed. Raises DeviceLost."""
        self._runner.check_device()

    def launch(self, scheduled: ScheduledForward) -> LaunchedForward:
        """Start the forward. Raises what is wrong with it already; then nothing of it is in
        flight."""
        plan = self._planner.plan(scheduled, self._cache.take_copies(), self._take_folds())
        return LaunchedForward(scheduled, self._runner.launch(plan))

    def record_event(self) -> Event:
        """Passed once all that was launched, and all that was to be copied, until now has ended."""
        self._store()
        return self._runner.record_event()

    def fold(self, folds: tuple[Fold, ...]) -> None:
        """Store the states of rows that verified drafts, in the next plan: a row that goes on with
        drafts stores its own on the way. REQUIRES: they have landed; a launch or fold_now() comes
        before the step ends."""
        self._folds += folds

    def fold_now(self) -> None:
        """What no forward of this step folds."""
        if self._folds:
            self._store()

    def _store(self) -> None:
        copies, folds = self._cache.take_copies(), self._take_folds()
        if copies or folds:
            self._runner.launch(self._planner.stores_alone(copies, folds))

    def _take_folds(self) -> tuple[Fold, ...]:
        folds, self._folds = self._folds, ()
        return folds
