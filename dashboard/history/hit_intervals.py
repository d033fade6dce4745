"""The hit waterfall over time: how many prompt tokens were usable, and why the rest was not.

Owns one interval a second for the last hour, and the totals since the start. Breakdowns are those
of events. Invariant: prompt == usable + the sum of causes, in each interval and in all.
"""

from collections import Counter, deque
from typing import Any

from tasuki.dashboard.metrics.request_metrics import UNSCHEDULED

_KEPT_SECONDS = 3600


class HitIntervals:
    def __init__(self) -> None:
        self.totals: Counter[str] = Counter()
        """prompt, usable, kv, requests, and `lost.CAUSE` of each cause."""
        self._intervals: deque[tuple[int, Counter[str]]] = deque()

    def add(self, at: float, prompt_tokens: int, hit: dict[str, Any] | None) -> None:
        """hit: a breakdown; None where the prompt was never looked up."""
        tokens = Counter({"prompt": prompt_tokens, "requests": 1})
        if hit is None:
            tokens[f"lost.{UNSCHEDULED}"] = prompt_tokens
        else:
            tokens["usable"] = hit["usable_tokens"]
            tokens["kv"] = hit["kv_tokens"]
            for cause, lost in hit["causes"].items():
                tokens[f"lost.{cause}"] = lost
        self.totals.update(tokens)
        second = int(at)
        if not self._intervals or self._intervals[-1][0] < second:
            self._intervals.append((second, Counter()))
        self._intervals[-1][1].update(tokens)
        while self._intervals[0][0] < second - _KEPT_SECONDS:
            self._intervals.popleft()

    def latest(self, now: float, seconds: int) -> Counter[str]:
        """Sums of the last `seconds`, by name as in `totals`."""
        sums: Counter[str] = Counter()
        for second, tokens in reversed(self._intervals):
            if second <= now - seconds:
                break
            sums.update(tokens)
        return sums

    def series(self, now: float, seconds: int, points: int) -> dict[str, Any]:
        """`at`: ends of `points` equal intervals up to now; `columns`: tokens of each, by name."""
        width = max(1, -(-seconds // points))
        end = (int(now) // width + 1) * width
        first = end - width * points
        sums: list[Counter[str]] = [Counter() for _ in range(points)]
        for second, tokens in self._intervals:
            if second >= first:
                sums[min(points - 1, (second - first) // width)].update(tokens)
        names = sorted({*self.totals, "prompt", "usable"})
        return {
            "at": [first + width * (index + 1) for index in range(points)],
            "columns": {name: [interval[name] for interval in sums] for name in names},
        }
