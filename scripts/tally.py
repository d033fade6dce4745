"""The counts of a run so far, and what must not be.

Owns counts. Thread rule: any thread, one lock. Invariant: once there was
a trouble, never again good.
"""

import threading
from collections import Counter


class Tally:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()
        self.faults: Counter[str] = Counter()
        """What was done to the nodes and their link."""
        self.troubles: list[str] = []
        """A line each."""

    def count(self, what: str, times: int = 1) -> None:
        with self._lock:
            self._counts[what] += times

    def disturbed(self, fault: str) -> None:
        with self._lock:
            self.faults[fault] += 1

    def __getitem__(self, what: str) -> int:
        return self._counts[what]

    @property
    def good(self) -> bool:
        return not self.troubles
