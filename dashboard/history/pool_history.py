"""Samples of a node's pools, about one a second, for the last half hour."""

from collections import deque
from typing import Any

from .events import Event

_REMEMBERED = 1800
_OWNERS = ("working", "pinned", "evictable", "in_transfer", "quarantined", "free")


class PoolHistory:
    def __init__(self) -> None:
        self._samples: deque[Event] = deque(maxlen=_REMEMBERED)

    def add(self, event: Event) -> None:
        self._samples.append(event)

    @property
    def last(self) -> Event | None:
        return self._samples[-1] if self._samples else None

    def series(self, seconds: int, points: int) -> dict[str, Any]:
        """Columns of slots and pages by owner, thinned to at most `points` samples."""
        kept = [sample for sample in self._samples if sample["at"] > self._end - seconds]
        stride = max(1, -(-len(kept) // points))
        kept = kept[::-1][::stride][::-1]
        return {
            "at": [sample["at"] for sample in kept],
            **{
                pool: {owner: [sample[pool][owner] for sample in kept] for owner in _OWNERS}
                for pool in ("slots", "pages")
            },
        }

    @property
    def _end(self) -> float:
        return float(self._samples[-1]["at"]) if self._samples else 0.0
