"""How long steps took, how long the device had nothing to run between two of them, and how many
drafts they had.

Owns counts by size and sums, nothing else. Thread rule: the engine loop's.
"""

from bisect import bisect_left
from collections import Counter

from tasuki.engine.messages import StepReport, TimeSpread

STEP_BOUNDS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2)
IDLE_BOUNDS = (0.00001, 0.00003, 0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 1)


class TimeCounter:
    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._seconds = 0.0

    def add(self, seconds: float) -> None:
        self._counts[bisect_left(self._bounds, seconds)] += 1
        self._seconds += seconds

    def spread(self) -> TimeSpread:
        return TimeSpread(self._bounds, tuple(self._counts), self._seconds)


class StepTimes:
    def __init__(self) -> None:
        self.steps = TimeCounter(STEP_BOUNDS)
        self.idle = TimeCounter(IDLE_BOUNDS)
        self._drafts: Counter[int] = Counter()

    def drafted(self, most: int) -> None:
        """A step, of answers of which some may be drafted, had so many drafts of one at most."""
        self._drafts[most] += 1

    def report(self) -> StepReport:
        drafts = {str(most): count for most, count in sorted(self._drafts.items())}
        return StepReport(self.steps.spread(), self.idle.spread(), drafts)
