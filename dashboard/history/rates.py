"""Numbers of a node over time: latency, cache hits, drafts, counters, and the savings of a larger
arena.

One thread; each class owns its numbers, and is fed with events.

PaceHistory: seconds to first tokens, of each later token, and in queues. It keeps every value of
the last minute, in intervals, and percentiles of the last hour. An interval with very many values
keeps a random sample.

HitIntervals: the hit waterfall: usable prompt tokens, and the others by cause. It keeps an interval
a second for the last hour, and totals since the start. Events supply the breakdowns. Invariant:
prompt == usable + the sum of causes, in each interval and in all.

WhatIf: an estimate of the prompt tokens saved by a larger arena. A prompt's state was evicted
`slabs_since` slabs ago. If evictions went by age alone, an arena larger by so many slabs would
still hold it. The distance comes from past traffic, and is at least one slab.

DraftTotals: drafted and accepted tokens since the start, by source and by position in a step's
drafts. It also estimates the effect of fewer drafts a step. Later drafts do not change whether a
step's first drafts are accepted, so the sums give the estimate. The estimate ignores one effect:
other steps would then begin at other tokens. Events older than the draft feature have no drafts.

PoolHistory: samples of the node's counters, about one a second, for the last half hour.
"""

import math
import random
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, islice, pairwise, takewhile
from typing import Any

from tasuki.dashboard.metrics.request_metrics import UNSCHEDULED

from .events import Event

FIRST, LATER, QUEUED = "first_token", "per_token", "queued"
_MEASURES = (FIRST, LATER, QUEUED)
_WIDTH = 5
"""Length in seconds of an interval of the pace history."""
_RECENT = 60
_KEPT = 3600 // _WIDTH
_MOST_VALUES = 512

Spread = dict[str, float]
"""The percentiles of a measure: "p50" and "p95" with their values."""


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
        """Record the end of a request. at: time in seconds since 1970. seconds: its value by
        measure; None is left out, because it has no such value."""
        interval = self._interval(at)
        interval.ended += 1
        for name, value in seconds.items():
            if value is not None:
                self._keep(interval, name, value)

    def latest(self, now: float) -> dict[str, Any]:
        """Return the pace of the last minute, rounded to whole intervals: the number of ended
        requests, and the percentiles of each measure. They are None without a value."""
        recent = [one for one in self._recent if one.begin + _WIDTH > now - _RECENT]
        spreads = {
            name: _spread([v for one in recent for v in one.values[name]]) for name in _MEASURES
        }
        return {"ended": sum(one.ended for one in recent), **spreads}

    def series(self, now: float, seconds: int, points: int) -> dict[str, list[Any]]:
        """Return the series of the percentiles of the time to the first token. `at`: ends of
        intervals up to now, at most `points`. p50, p95: seconds to first tokens in each interval;
        None without any. If there are more intervals than points, the later ones are shown."""
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
    """Return the value at this share (0 to 1) of the sorted values, interpolated between
    neighbours."""
    place = share * (len(ordered) - 1)
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


_KEPT_SECONDS = 3600


class HitIntervals:
    def __init__(self) -> None:
        self.totals: Counter[str] = Counter()
        """Sums since the start: prompt, usable and kv in tokens, requests, and `lost.CAUSE` in
        tokens of each cause."""
        self._intervals: deque[tuple[int, Counter[str]]] = deque()

    def add(self, at: float, prompt_tokens: int, hit: dict[str, Any] | None) -> None:
        """Add a request's prompt. hit: its tokens by usability and cause; None if the cache never
        looked up the prompt."""
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
        """Return the sums of the last `seconds` before `now`, under the names in `totals`."""
        sums: Counter[str] = Counter()
        for second, tokens in reversed(self._intervals):
            if second <= now - seconds:
                break
            sums.update(tokens)
        return sums

    def series(self, now: float, seconds: int, points: int) -> dict[str, Any]:
        """Return a series of the hit waterfall. `at`: ends of `points` equal intervals up to now;
        `columns`: tokens in each interval, by name."""
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


_REMEMBERED_PROMPTS = 4096
_TARGET = 0.8


@dataclass(frozen=True)
class _Prompt:
    tokens: int
    recoverable: int
    slabs: int


class WhatIf:
    def __init__(self) -> None:
        self._prompts: deque[_Prompt] = deque(maxlen=_REMEMBERED_PROMPTS)

    def add(self, prompt_tokens: int, hit: dict[str, Any] | None) -> None:
        lost = None if hit is None else hit.get("lost")
        if hit is None or lost is None:
            self._prompts.append(_Prompt(prompt_tokens, 0, 0))
            return
        covered = min(lost["tokens"], prompt_tokens - 1)
        recoverable = max(0, covered - hit["usable_tokens"])
        slabs = max(1, math.ceil(lost["slabs_since"]))
        self._prompts.append(_Prompt(prompt_tokens, recoverable, slabs))

    def answer(self) -> dict[str, Any]:
        """Return the estimate for larger arenas. curve: pairs (number of additional slots, prompt
        tokens saved), ascending. slots: the fewest additional slots with 80 % of the largest
        saving; 0: none. tokens, points: the saving of these slots, also as a percentage of all
        prompt tokens."""
        total = sum(prompt.tokens for prompt in self._prompts)
        saved = 0
        curve: list[tuple[int, int]] = []
        for prompt in sorted(self._prompts, key=lambda prompt: prompt.slabs):
            saved += prompt.recoverable
            if prompt.recoverable:
                if curve and curve[-1][0] == prompt.slabs:
                    curve.pop()
                curve.append((prompt.slabs, saved))
        slots, tokens = next(((n, t) for n, t in curve if t >= _TARGET * saved), (0, 0))
        points = 100 * tokens / total if total else 0.0
        return {
            "slots": slots,
            "tokens": tokens,
            "points": points,
            "of_tokens": total,
            "curve": curve,
        }


_PLACES = 8
"""Largest number of drafts a step in the estimate."""


class DraftTotals:
    def __init__(self) -> None:
        self._drafted: dict[str, Counter[int]] = {}
        self._accepted: dict[str, Counter[int]] = {}

    def add(self, usage: dict[str, Any]) -> None:
        """Add the drafted and accepted tokens of an ended request, if any."""
        for use in usage.get("drafts", ()):
            for sums, name in ((self._drafted, "drafted"), (self._accepted, "accepted")):
                sums.setdefault(use["source"], Counter()).update(dict(enumerate(use[name])))

    def answer(self) -> dict[str, dict[str, Any]]:
        """Return by draft source the drafted and accepted tokens, and tokens_a_step. tokens_a_step:
        list of the mean tokens of a step with drafts from this source, for at most 1, 2, ...
        drafts. The step's own token is included."""
        return {source: self._of(source) for source in self._drafted}

    def _of(self, source: str) -> dict[str, Any]:
        drafted, accepted = self._drafted[source], self._accepted[source]
        steps = max(1, drafted[0])
        held = accumulate(accepted[place] for place in range(len(drafted)))
        return {
            "drafted": drafted.total(),
            "accepted": accepted.total(),
            "tokens_a_step": [1 + tokens / steps for tokens in islice(held, _PLACES)],
        }


_REMEMBERED_SAMPLES = 1800
_PARTS = ("in_use", "cached", "free")


class PoolHistory:
    def __init__(self) -> None:
        self._samples: deque[Event] = deque(maxlen=_REMEMBERED_SAMPLES)

    def add(self, event: Event) -> None:
        self._samples.append(event)

    @property
    def last(self) -> Event | None:
        return self._samples[-1] if self._samples else None

    def output_rate(self, seconds: float) -> float | None:
        """Return the mean rate of the answers' tokens a second, over the `seconds` up to the last
        sample. Return None before two samples in them, and for old recordings without this
        count."""
        rates = _rates([kept[0], kept[-1]] if (kept := self._since(seconds)) else [])
        return rates[-1] if rates else None

    def series(self, seconds: int, points: int) -> dict[str, Any]:
        """Return series of the arena's memory and of the answers' tokens a second, over the last
        `seconds`. They are thinned to at most `points` samples. The first rate is None."""
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
        """Return the last sample of the counters, and the samples of the `seconds` before it,
        oldest first."""
        end = float(self._samples[-1]["at"]) if self._samples else 0.0
        younger = takewhile(lambda sample: sample["at"] > end - seconds, reversed(self._samples))
        return list(younger)[::-1]


def _rates(samples: Sequence[Event]) -> list[float | None]:
    """Return the answers' tokens a second between each sample and the sample before it."""
    return [_rate(before, sample) for before, sample in pairwise(samples)]


def _rate(before: Event, sample: Event) -> float | None:
    took: float = sample["at"] - before["at"]
    if took <= 0 or "generated_tokens" not in before or "generated_tokens" not in sample:
        return None
    gained: int = sample["generated_tokens"] - before["generated_tokens"]
    return max(0.0, gained / took)
