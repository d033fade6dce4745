"""How fast answers came: seconds to first tokens, of each later one, and in queues.

Owns every value of the last minute, in intervals, and the percentiles of the last hour's. Of an
interval with very many values a sample stands for all. One thread.
"""

import random
from collections import deque
from itertools import takewhile
from typing import Any

FIRST, LATER, QUEUED = "first_token", "per_token", "queued"
_MEASURES = (FIRST, LATER, QUEUED)
_WIDTH = 5
"""Seconds of an interval."""
_RECENT = 60
_KEPT = 3600 // _WIDTH
_MOST_VALUES = 512

Spread = dict[str, float]
"""p50 and p95."""


class _Interval:
    def __init__(self, begin: int) -> None:
        self.begin = begin
        self.ended = 0
        self.counts = dict.fromkeys(_MEASURES, 0)
        self.values: dict[str, list[float]] = {name: [] for name in _MEASURES}


class PaceHistory:
    def __init__(self) -> None:
        self._recent: deque[_Interval] = deque()
        self._past: deque[tuple[int, dict[str, Spread | None]]] = deque(maxlen=_KEPT)
        self._chance = random.Random(1)

    def add(self, at: float, **seconds: float | None) -> None:
        """A request ended. seconds: by measure; None of what it has not."""
        interval = self._interval(at)
        interval.ended += 1
        for name, value in seconds.items():
            if value is not None:
                self._keep(interval, name, value)

    def latest(self, now: float) -> dict[str, Any]:
        """Of the last minute, to an interval: how many ended, and a spread by measure, None without
        a value."""
        recent = [one for one in self._recent if one.begin + _WIDTH > now - _RECENT]
        spreads = {
            name: _spread([v for one in recent for v in one.values[name]]) for name in _MEASURES
        }
        return {"ended": sum(one.ended for one in recent), **spreads}

    def series(self, now: float, seconds: int, points: int) -> dict[str, list[Any]]:
        """`at`: ends of intervals up to now, at most `points`; p50 and p95 of the first tokens in
        each, None where there was none. Of more intervals than points the later ones are shown."""
        end = int(now) // _WIDTH * _WIDTH
        count = min(points, max(1, seconds // _WIDTH))
        begins = [end - _WIDTH * back for back in range(count - 1, -1, -1)]
        known = {one.begin: _spread(one.values[FIRST]) for one in self._recent}
        for begin, spreads in takewhile(lambda past: past[0] >= begins[0], reversed(self._past)):
            known[begin] = spreads[FIRST]
        found = [known.get(begin) or {} for begin in begins]
        return {
            "at": [begin + _WIDTH for begin in begins],
            "p50": [spread.get("p50") for spread in found],
            "p95": [spread.get("p95") for spread in found],
        }

    def _interval(self, at: float) -> _Interval:
        begin = int(at) // _WIDTH * _WIDTH
        if not self._recent or self._recent[-1].begin < begin:
            self._recent.append(_Interval(begin))
        while self._recent[0].begin + _WIDTH <= begin - _RECENT:
            old = self._recent.popleft()
            self._past.append((old.begin, _spreads(old)))
        return self._recent[-1]

    def _keep(self, interval: _Interval, name: str, value: float) -> None:
        interval.counts[name] += 1
        values = interval.values[name]
        if len(values) < _MOST_VALUES:
            values.append(value)
        elif (place := self._chance.randrange(interval.counts[name])) < _MOST_VALUES:
            values[place] = value


def _spreads(interval: _Interval) -> dict[str, Spread | None]:
    return {name: _spread(values) for name, values in interval.values.items()}


def _spread(values: list[float]) -> Spread | None:
    if not values:
        return None
    ordered = sorted(values)
    return {"p50": _at(ordered, 0.5), "p95": _at(ordered, 0.95)}


def _at(ordered: list[float], share: float) -> float:
    """Between its neighbours where the place is none of a value."""
    place = share * (len(ordered) - 1)
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)
