"""Counts of pictures before the engine: refused ones, and seconds of fetches.

PictureCounter owns the counts of one process. Any thread.
"""

import threading
from bisect import bisect_left

from tasuki.engine.messages import FETCH_BOUNDS, NO_FETCHES, PictureCounts, TimeSpread


class PictureCounter:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._refused = 0
        self._fetches = [*NO_FETCHES.counts]
        self._seconds = 0.0

    def refuse(self) -> None:
        """Count a refused picture. A request counts once."""
        with self._lock:
            self._refused += 1

    def fetched(self, seconds: float) -> None:
        """Count an address that was fetched."""
        with self._lock:
            self._fetches[bisect_left(FETCH_BOUNDS, seconds)] += 1
            self._seconds += seconds

    def counts(self) -> PictureCounts:
        with self._lock:
            spread = TimeSpread(FETCH_BOUNDS, tuple(self._fetches), self._seconds)
            return PictureCounts(self._refused, spread)
