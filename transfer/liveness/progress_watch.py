"""For how long nothing of a room has moved.

Owns the reading of the clock. Knows no states: a mark stands for how far the room is, and changes
when it moves. Thread rule: one thread a watch.
Invariant: time in which this process did not look counts as one look at most. A node that was
frozen, or whose loop was busy, does not judge others by its own gap.
"""

import time
from collections.abc import Callable, Hashable


class ProgressWatch:
    def __init__(self, look_seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        """look_seconds: between two looks where nothing else happens."""
        self._longest = 2 * look_seconds
        self._clock = clock
        self._mark: Hashable = None
        self._looked = clock()
        self._still = 0.0

    def still(self, mark: Hashable) -> float:
        """Seconds since the mark changed; look often."""
        now = self._clock()
        passed, self._looked = min(now - self._looked, self._longest), now
        if mark == self._mark:
            self._still += passed
        else:
            self._mark, self._still = mark, 0.0
        return self._still
