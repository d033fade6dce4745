"""Samples of a node's counters, about one a second, for the last half hour."""

from collections import deque
from collections.abc import Sequence
from itertools import pairwise, takewhile
from typing import Any

from .events import Event

_REMEMBERED = 1800
_PARTS = ("in_use", "cached", "free")


class PoolHistory:
    def __init__(self) -> None:
        self._samples: deque[Event] = deque(maxlen=_REMEMBERED)

    def add(self, event: Event) -> None:
        self._samples.append(event)

    @property
    def last(self) -> Event | None:
        return self._samples[-1] if self._samples else None

    def output_rate(self, seconds: float) -> float | None:
        """Tokens of answers a second, up to the last sample; None before two of them. A recording
        may be from before they were counted."""
        rates = _rates([kept[0], kept[-1]] if (kept := self._since(seconds)) else [])
        return rates[-1] if rates else None

    def series(self, seconds: int, points: int) -> dict[str, Any]:
        """The arena's memory and the output's rate, thinned to at most `points` samples."""
        kept = self._since(seconds)
        stride = max(1, -(-len(kept) // points))
        kept = kept[::-1][::stride][::-1]
        memory = [sample.get("memory") or {} for sample in kept]
        return {
            "at": [sample["at"] for sample in kept],
            "memory": {part: [use.get(part, 0) for use in memory] for part in _PARTS},
            "output_rate": [None, *_rates(kept)] if kept else [],
        }

    def _since(self, seconds: float) -> list[Event]:
        """Those of the last `seconds` before the last one, and it."""
        end = float(self._samples[-1]["at"]) if self._samples else 0.0
        younger = takewhile(lambda sample: sample["at"] > end - seconds, reversed(self._samples))
        return list(younger)[::-1]


def _rates(samples: Sequence[Event]) -> list[float | None]:
    """Between each sample and the one before it."""
    return [_rate(before, sample) for before, sample in pairwise(samples)]


def _rate(before: Event, sample: Event) -> float | None:
    took: float = sample["at"] - before["at"]
    if took <= 0 or "generated_tokens" not in before or "generated_tokens" not in sample:
        return None
    gained: int = sample["generated_tokens"] - before["generated_tokens"]
    return max(0.0, gained / took)
