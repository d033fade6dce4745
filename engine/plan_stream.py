"""The engine's end of its runner: what was scheduled goes in, its tokens come back beside it.

Owns the order of everything that happens in the arena: forwards, the cache's copies, events. Thread
rule: the engine loop.
Invariant: a copy that the cache decided runs before whatever is launched or recorded here next. So
a forward never reads bytes that were to be copied first, and no other node may read or write an id
that a copy still awaits: it is given the id behind an event.
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
        plan = self._planner.plan(scheduled, self._cache.take_copies())
        return LaunchedForward(scheduled, self._runner.launch(plan))

    def record_event(self) -> Event:
        """Passed once all that was launched, and all that was to be copied, until now has ended."""
        copies = self._cache.take_copies()
        if copies:
            self._runner.launch(self._planner.stores_alone(copies))
        return self._runner.record_event()

    def fold(self, folds: tuple[Fold, ...]) -> None:
        """Store the states of rows that verified drafts, before anybody reads their slots.
        REQUIRES: they have landed."""
        self._runner.launch(self._planner.stores_alone(self._cache.take_copies(), folds))
