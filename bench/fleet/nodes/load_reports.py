"""What a simulated node's reports say of its load, taken at whole periods and some time under way.

Owns the reports that are still needed. Between two changes of what the node has to do, its wait
falls with time, so one report of each is kept. Thread rule: one thread; time does not go back.
"""

from collections import deque

from tasuki.routing.node_load import faded

Report = tuple[float, float, float]
"""NodeLoad.report's: wait, when it was taken, seconds of prefill that were stored lately."""


class LoadReports:
    def __init__(self, period: float, delay: float) -> None:
        """period: seconds between two reports; delay: until one has come."""
        self._period = period
        self._delay = delay
        self._changes: deque[Report] = deque([(0.0, 0.0, 0.0)])  # from when, free at, stored

    def changed(self, now: float, wait: float, stored: float) -> None:
        """From now on the node has that wait, and had stored so much, seconds."""
        self._forget(now)
        self._changes.append((now, now + wait, stored))

    def latest(self, now: float) -> Report:
        """The last report that has come."""
        at = self._forget(now)
        since, free_at, stored = self._changes[0]
        return max(0.0, free_at - at), at, faded(stored, at - since)

    def _forget(self, now: float) -> float:
        """When the last report that has come was taken; drops what stood before."""
        at = max(0.0, (now - self._delay) // self._period * self._period)
        while len(self._changes) > 1 and self._changes[1][0] <= at:
            self._changes.popleft()
        return at
