"""The number of drafts per answer in the next step, and the measured cost of steps with drafts.

A step's seconds run from the end of the previous step on the device to its own end. So host time
between steps counts: a step with drafts is not planned while the previous one runs. For steps with
drafts only the extra time over a step without is kept, because growing contexts lengthen both.

StepCosts knows rows and seconds, no requests. A limit is fixed or measured; it reads no clock:
callers pass durations. Thread rule: the engine loop's.
"""

from bisect import bisect_left
from collections import defaultdict, deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from typing import Protocol

from .drafting import Drafting

_KEPT = 9
"""Number of newest step durations kept for each kind of step."""
_KNOWN = 3
"""Number of measured steps of a kind needed to know its duration. Fewer may all be delayed."""


@dataclass(frozen=True)
class StepShape:
    """The answers in a decode step. plain: number of answers without drafts. drafted: number of
    answers with drafts. tokens: number of tokens in the longest row with drafts."""

    plain: int
    drafted: int
    tokens: int

    @property
    def answers(self) -> int:
        return self.plain + self.drafted


class StepCosts:
    def __init__(self, widths: Sequence[int]) -> None:
        """widths: row lengths with kernels, in tokens, rising; no row is longer than the last."""
        self.widths = widths
        some = partial(deque[float], maxlen=_KEPT)
        self._plain: dict[int, deque[float]] = defaultdict(some)
        self._more: dict[tuple[int, int, int], deque[float]] = defaultdict(some)

    def completed(self, shape: StepShape, seconds: float) -> None:
        """Record the duration of a step of this shape. For a step with drafts, record the time
        beyond a plain step, if known."""
        if not shape.drafted:
            self._plain[shape.plain].append(seconds)
            return
        plain = self.plain(shape.answers)
        if plain is not None:
            self._more[self._kind(shape)].append(seconds - plain)

    def plain(self, answers: int) -> float | None:
        """Return the expected seconds of a step with `answers` answers and no drafts; None if too
        few were measured."""
        seconds = self._plain.get(answers, ())
        return _quick(seconds) if len(seconds) >= _KNOWN else None

    def known(self, shape: StepShape) -> float | None:
        """Return the extra seconds of a step with drafts, for a measured kind of step; None if too
        few were measured."""
        seconds = self._more.get(self._kind(shape), ())
        return _quick(seconds) if len(seconds) >= _KNOWN else None

    def more(self, shape: StepShape) -> float:
        """Return the expected extra seconds of a step with drafts over one without. A kind of step
        with too few measurements gets the largest value of smaller kinds, so it is tried."""
        known, own = self.known(shape), self._kind(shape)
        if known is not None:
            return known
        smaller = (
            _quick(seconds)
            for kind, seconds in self._more.items()
            if len(seconds) >= _KNOWN
            and all(one <= other for one, other in zip(kind, own, strict=True))
        )
        return max(smaller, default=0.0)

    def _kind(self, shape: StepShape) -> tuple[int, int, int]:
        width = self.widths[bisect_left(self.widths, shape.tokens)]
        return shape.plain.bit_length(), (shape.drafted - 1).bit_length(), width


def _quick(seconds: Collection[float]) -> float:
    """Return the lower quartile of the durations, because other work only lengthens steps."""
    return sorted(seconds)[(len(seconds) - 1) // 4]


class DraftLimit(Protocol):
    """Limits the drafts per answer of the next step.

    A limit affects the duration of steps, never the resulting tokens: see drafting.py.

    Thread rule: the engine loop's.
    """

    @property
    def watched(self) -> int:
        """Number of answers with drafters to be watched (compared with the answer) during a next
        step without drafts."""

    def next(self, answers: int, drafting: Collection[Drafting]) -> int:
        """Return the largest number of drafts per answer in the next step. 0: no drafts, and the
        step is planned while the previous one runs. answers: number of running answers. drafting:
        the answers among them with sources of drafts, at least one."""

    def of_step(self, answers: int, proposed: Sequence[tuple[Drafting, int]]) -> int:
        """Return the largest number of proposed drafts per row to compute in this step. answers:
        number of answers in the step. proposed: each drafted answer with its number of drafts."""

    def completed(self, shape: StepShape, tokens: int, seconds: float, *, planned: bool) -> None:
        """Record a decode-only step. tokens: number of tokens it produced. seconds: time since the
        previous step ended. planned: True if it was planned while the previous step ran."""


class FixedLimit:
    """A constant largest number of drafts per answer, at any cost."""

    watched = 0

    def __init__(self, most: int) -> None:
        self.most = most

    def next(self, answers: int, drafting: Collection[Drafting]) -> int:
        return self.most

    def of_step(self, answers: int, proposed: Sequence[tuple[Drafting, int]]) -> int:
        return self.most

    def completed(self, shape: StepShape, tokens: int, seconds: float, *, planned: bool) -> None:
        """Do nothing: the limit is constant."""


_GAINS = 1.02
"""Least gain in tokens per second to use drafts, as a factor; smaller gains are within measurement
errors."""
_ALLOWED = 0.003
_MOST_LOST, _MOST_OWED = 3.0, 1.0
_TRIAL = 0.5
"""Most loss charged for a step with drafts of a kind not known yet, as a part of a step's time."""
_WAITED = 0.25
"""Most loss charged for host time before a step not planned ahead, as a part of a step's time."""
_DOUBTED = 64
"""Number of steps without drafts after unfavourable estimates. Then the estimates are tested in
_TRIES steps with drafts."""
_TRIES = 3
_CONSIDERED = 4
"""Number of steps without drafts for each use of the estimates, because one takes some 20 us."""
_STALE = 256
"""Number of steps with drafts after which _ANEW steps without are measured again."""
_WATCHED = 4
_LOOK_SECONDS = 60e-6
"""Approximate seconds to watch one drafter (compare its proposals with the answer) in a step."""
_WATCHING = 0.003
"""Part of the time of steps without drafts spent on watching drafters. In such steps the device's
work overlaps little of the host's."""
_ANEW = 3
_UNMEASURED = 0.8
"""Assumed acceptance of a draft in a test of estimates, for sources only a forward can measure."""


class MeasuredLimit:
    """The number of drafts per answer with the most tokens per second, from measured step times and
    acceptance.

    Acceptance is known only on average, and costs change. So drafts may lose only a small allowed
    part of all time, whatever the estimates. Owns the costs of steps and the remaining allowance.
    Pure: it reads no clock. Thread rule: the engine loop's. Invariant: once drafts have lost
    _MOST_LOST steps more than they gained, by the known costs, none are used. They resume after
    enough steps for the allowance, _ALLOWED a step, to repay the debt.
    """

    def __init__(self, widths: Sequence[int]) -> None:
        """widths: row lengths with kernels, in tokens, rising; the last is the longest row."""
        self.costs = StepCosts(widths)
        self._spare = _MOST_LOST
        """Loss by drafts still allowed, in numbers of steps; below 0 after a larger loss."""
        self._doubted = 0
        self._stale: dict[int, int] = {}
        """Number of steps with drafts since steps without drafts were last measured, by number of
        answers."""
        self._anew = 0
        self._tries = False
        self._looks = 0.0

    @property
    def watched(self) -> int:
        return int(self._looks)

    def next(self, answers: int, drafting: Collection[Drafting]) -> int:
        self._tries = False
        plain = self.costs.plain(answers)
        if plain is None or self._spare <= 0 or self._measures_anew(answers):
            return 0
        if self._doubted < _DOUBTED and self._doubted % _CONSIDERED:
            self._doubted += 1
            return 0
        rows = [(one.chances.found, one.chances.gains(self._most)) for one in drafting]
        found = self._best(answers, plain, rows, 1.0)
        if found:
            self._doubted = 0
            return found
        self._doubted = (self._doubted + 1) % (_DOUBTED + _TRIES)
        if self._doubted < _DOUBTED:
            return 0
        found = self._best(answers, plain, _hoped(rows, drafting), 0.5)
        self._tries = found > 0
        return found

    def of_step(self, answers: int, proposed: Sequence[tuple[Drafting, int]]) -> int:
        most = max((count for _, count in proposed), default=0)
        plain = self.costs.plain(answers)
        if not most or self._tries or plain is None:
            return most
        rows = [(1.0, one.chances.gains(count)) for one, count in proposed if count]
        return min(most, self._best(answers, plain, rows, 1.0))

    def completed(self, shape: StepShape, tokens: int, seconds: float, *, planned: bool) -> None:
        before = self.costs.plain(shape.answers)
        if before is not None and not shape.drafted:
            # Carry over the part of a look for which this step's time is not enough.
            self._looks = min(_WATCHED, self._looks % 1 + _WATCHING * before / _LOOK_SECONDS)
        if planned or shape.drafted:
            self.costs.completed(shape, seconds)
        self._spare += _ALLOWED
        if shape.drafted:
            self._stale[shape.answers] = self._stale.get(shape.answers, 0) + 1
        elif planned and self._measures_anew(shape.answers):
            self._anew += 1
            if self._anew == _ANEW:
                self._anew = self._stale[shape.answers] = 0
        if before is not None and shape.drafted:
            known = self.costs.known(shape)
            # A single step may be slow for other reasons, so charge drafts the known cost of such
            # steps.
            lost = min(_TRIAL, seconds / before - 1) if known is None else known / before
            self._spare += tokens / shape.answers - 1 - lost
        elif before is not None and not planned:
            # The step waited for drafts to complete or to be chosen.
            self._spare -= min(_WAITED, max(0.0, seconds / before - 1))
        self._spare = max(-_MOST_OWED, min(self._spare, _MOST_LOST))

    def _measures_anew(self, answers: int) -> bool:
        return self._stale.get(answers, 0) >= _STALE

    @property
    def _most(self) -> int:
        return self.costs.widths[-1] - 1

    def _best(
        self, answers: int, plain: float, rows: Sequence[tuple[float, Sequence[float]]], part: float
    ) -> int:
        """Return the number of drafts per row with the most tokens per second; 0 if drafts gain
        nothing. plain: seconds of a step without drafts. rows: for each row, the chance to have
        drafts, and the mean number accepted of 1, 2, .. drafts. part: factor on the known costs of
        drafts."""
        drafted = min(answers, max(1, round(sum(found for found, _ in rows))))
        best, rate = 0, _GAINS * answers / plain
        for width in self.costs.widths:
            shape = StepShape(answers - drafted, drafted, width)
            held = sum(found * gains[min(width - 1, len(gains)) - 1] for found, gains in rows)
            seconds = plain + part * self.costs.more(shape)
            if answers + held > rate * seconds:
                best, rate = width - 1, (answers + held) / seconds
            if self.costs.known(shape) is None:
                # The cost of more drafts can be estimated only after the cost of these is known.
                break
        return best


def _hoped(
    rows: Sequence[tuple[float, Sequence[float]]], drafting: Collection[Drafting]
) -> list[tuple[float, Sequence[float]]]:
    """Return the rows with optimistic acceptance, as if unfavourable results were out of date."""
    return [
        (1.0, [*accumulate(_UNMEASURED**place for place in range(1, len(gains) + 1))])
        if one.guesses
        else (found, gains)
        for (found, gains), one in zip(rows, drafting, strict=True)
    ]
