"""How far all ranks are: what none of them has still to write.

A step counter is each rank's own; a sender waits for this one, which has a value once the slowest
rank does. Thread rule: any thread, one lock.
"""

import threading
from collections import deque
from collections.abc import Callable

from tasuki.transfer.windows.step_counter import StepCounter

Report = Callable[[int, bool], None]
"""A rank's ticks so far, and whether a forward ended with the last."""


class ReportedSteps(StepCounter):
    """A rank's own counter, which says at each tick how far it is."""

    def __init__(self, report: Report) -> None:
        """report: called on the ticking thread."""
        super().__init__(report)


class AgreedSteps:
    """steps: of all ranks; ticked here alone."""

    def __init__(self, ranks: int) -> None:
        self.steps = StepCounter()
        self._lock = threading.Lock()
        self._values = [0] * ranks
        self._ends: deque[int] = deque()

    def report(self, rank: int, value: int, ended: bool) -> None:
        """As Report. What was reported is never more than is done."""
        with self._lock:
            self._values[rank] = max(self._values[rank], value)
            if ended and (not self._ends or self._ends[-1] < value):
                self._ends.append(value)
            least = min(self._values)
            while self.steps.value < least:
                self.steps.tick()
                self._end_if_over()
            self._end_if_over()

    def _end_if_over(self) -> None:
        while self._ends and self._ends[0] <= self.steps.value:
            self._ends.popleft()
            self.steps.end_forward()
