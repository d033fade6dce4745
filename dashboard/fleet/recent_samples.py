"""What a node's counters gained lately.

Owns a few of its last samples. One thread. Invariant: they are of one life of the node: where it
was started anew the earlier ones are forgotten.
"""

from collections import deque
from dataclasses import dataclass

from .exposition_text import Samples, difference, one
from .metric_names import ANSWERED, GENERATED, LOOKED_UP, STARTED

SPAN_SECONDS = 60.0
"""Rates and percentiles are of so long, or of as long as the node is known."""

_KEPT = 4
_GROWING = (GENERATED, ANSWERED[0], LOOKED_UP[0])


@dataclass(frozen=True)
class Gained:
    """added: to each counter within `seconds`, which are over 0."""

    seconds: float
    added: Samples

    def rate(self, name: str) -> float | None:
        """A second, of the counter without labels; None where the node has none."""
        added = one(self.added, name)
        return None if added is None else added / self.seconds


class RecentSamples:
    def __init__(self) -> None:
        self._kept: deque[tuple[float, Samples]] = deque()
        self.latest: Samples = {}
        self.gained: Gained | None = None
        """Lately; None until two samples are there."""

    def take(self, at: float, samples: Samples) -> None:
        """at: seconds of a clock that never goes back."""
        if _began_anew(self.latest, samples):
            self._kept.clear()
        self.latest = samples
        # The last one moves along until it is far enough from the one before.
        if len(self._kept) > 1 and at - self._kept[-2][0] < SPAN_SECONDS / _KEPT:
            self._kept.pop()
        self._kept.append((at, samples))
        while len(self._kept) > 2 and at - self._kept[1][0] >= SPAN_SECONDS:
            self._kept.popleft()
        (begun, earlier), (ended, later) = self._kept[0], self._kept[-1]
        took = ended - begun
        self.gained = Gained(took, difference(later, earlier)) if took > 0 else None


def _began_anew(before: Samples, now: Samples) -> bool:
    if one(before, STARTED) != one(now, STARTED):
        return True
    return any((one(now, name) or 0.0) < (one(before, name) or 0.0) for name in _GROWING)
