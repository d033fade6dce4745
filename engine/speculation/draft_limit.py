"""How many drafts each answer of the next step may have, and how long steps take with them.

How long steps of answers take, with drafts and without, by what the last ones took.

Seconds from the end of a step on the device to the end of the next one, so that what the host takes
between them counts: a step with drafts is not planned while the one before runs. Of a step with
drafts it keeps what it takes more than one without, since contexts that grow make both longer.
Knows rows and seconds, no requests. Thread rule: the engine loop's.

How many drafts each answer of the next step may have: a fixed or a measured limit.

Thread rule: the engine loop's. The limit reads no clock: callers bring durations.
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
"""Steps of a kind, the newest."""
_KNOWN = 3
"""So many of a kind show what one takes: of fewer each may have waited for something else."""


@dataclass(frozen=True)
class StepShape:
    """plain: answers without drafts. drafted: with. tokens: of a row with drafts, the longest."""

    plain: int
    drafted: int
    tokens: int

    @property
    def answers(self) -> int:
        return self.plain + self.drafted


class StepCosts:
    def __init__(self, widths: Sequence[int]) -> None:
        """widths: tokens of a row for which there are kernels, rising; a row has as many or
        fewer."""
        self.widths = widths
        some = partial(deque[float], maxlen=_KEPT)
        self._plain: dict[int, deque[float]] = defaultdict(some)
        self._more: dict[tuple[int, int, int], deque[float]] = defaultdict(some)

    def landed(self, shape: StepShape, seconds: float) -> None:
        """A step took so long."""
        if not shape.drafted:
            self._plain[shape.plain].append(seconds)
            return
        plain = self.plain(shape.answers)
        if plain is not None:
            self._more[self._kind(shape)].append(seconds - plain)

    def plain(self, answers: int) -> float | None:
        """Seconds of a step of so many without drafts, of one that nothing else made long; None
        where there have been too few."""
        seconds = self._plain.get(answers, ())
        return _quick(seconds) if len(seconds) >= _KNOWN else None

    def known(self, shape: StepShape) -> float | None:
        """As more(); None of a kind that few were of."""
        seconds = self._more.get(self._kind(shape), ())
        return _quick(seconds) if len(seconds) >= _KNOWN else None

    def more(self, shape: StepShape) -> float:
        """Seconds that a step with drafts takes more. Of a kind that few were of: as long as the
        longest known one that has fewer of everything, so that it is tried."""
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
    """The lower quartile: what else a machine does only makes steps longer."""
    return sorted(seconds)[(len(seconds) - 1) // 4]


class DraftLimit(Protocol):
    """How many drafts the answers of the next step may have: the protocol, and a limit that stays.

    A limit decides how long steps take, never which tokens come of them: see drafting.py.

    Thread rule: the engine loop's.
    """

    @property
    def watched(self) -> int:
        """Answers whose drafters are to be watched beside the next step if it has no drafts."""

    def next(self, answers: int, drafting: Collection[Drafting]) -> int:
        """Drafts of each answer of the next step at most; 0: it is planned while the one before
        runs, as if nobody drafted. answers: that run. drafting: of those of them that may be
        drafted, at least one."""

    def of_step(self, answers: int, proposed: Sequence[tuple[Drafting, int]]) -> int:
        """Now that drafts were proposed, so many of each, how many of them are computed at most.
        answers: that the step has, these included."""

    def landed(self, shape: StepShape, tokens: int, seconds: float, *, planned: bool) -> None:
        """A step of nothing but answers, which gave so many tokens, ended so long after the one
        right before it. planned: while that one ran."""


class FixedLimit:
    """As many as there are, up to a number, whatever they cost."""

    def __init__(self, most: int) -> None:
        self.most = most

    @property
    def watched(self) -> int:
        return 0

    def next(self, answers: int, drafting: Collection[Drafting]) -> int:
        return self.most

    def of_step(self, answers: int, proposed: Sequence[tuple[Drafting, int]]) -> int:
        return self.most

    def landed(self, shape: StepShape, tokens: int, seconds: float, *, planned: bool) -> None:
        """It changes nothing."""


_GAINS = 1.02
"""Times the tokens a second without: less is within what is measured wrongly."""
_ALLOWED = 0.003
_MOST_LOST, _MOST_OWED = 3.0, 1.0
_TRIAL = 0.5
"""Of a step's time, what one with drafts is charged while few of its kind have been."""
_WAITED = 0.25
"""Of a step's time, what the host takes at most between two that it does not plan ahead."""
_DOUBTED = 64
"""Steps without drafts after which what speaks against them is tried again, in _TRIES steps."""
_TRIES = 3
_CONSIDERED = 4
"""Steps without drafts of which one looks at the estimates anew: that takes the host some 20 us."""
_STALE = 256
"""Steps with drafts after which some without are measured again, _ANEW of them."""
_WATCHED = 4
_LOOK_SECONDS = 60e-6
"""That a drafter takes to look, about."""
_WATCHING = 0.003
"""Of the time of steps without drafts, which hide little of the host's: so much goes into looks."""
_ANEW = 3
_UNMEASURED = 0.8
"""How likely a draft holds in such a try where only a forward could show it."""


class MeasuredLimit:
    """As many drafts a step as make the most tokens a second, by what steps took and what held.

    What holds is known only in the mean, and costs change: so whatever the estimates say, drafts
    may lose no more time than they are allowed, a small part of all time. Owns the costs of steps,
    and what drafts may still lose. Pure: it reads no clock. Thread rule: the engine loop's.
    Invariant: where drafts lost _MOST_LOST steps more than they gained, by the costs that it knows,
    there are none until as many steps have passed as make _ALLOWED of them worth what they owe.
    """

    def __init__(self, widths: Sequence[int]) -> None:
        """widths: as of StepCosts; the last one is a row's of the most drafts."""
        self.costs = StepCosts(widths)
        self._spare = _MOST_LOST
        """Steps that drafts may lose."""
        self._doubted = 0
        self._stale: dict[int, int] = {}
        """Steps with drafts since those without were measured, by answers."""
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

    def landed(self, shape: StepShape, tokens: int, seconds: float, *, planned: bool) -> None:
        before = self.costs.plain(shape.answers)
        if before is not None and not shape.drafted:
            # Of a look that its time is not enough for, a part stands over.
            self._looks = min(_WATCHED, self._looks % 1 + _WATCHING * before / _LOOK_SECONDS)
        if planned or shape.drafted:
            self.costs.landed(shape, seconds)
        self._spare += _ALLOWED
        if shape.drafted:
            self._stale[shape.answers] = self._stale.get(shape.answers, 0) + 1
        elif planned and self._measures_anew(shape.answers):
            self._anew += 1
            if self._anew == _ANEW:
                self._anew = self._stale[shape.answers] = 0
        if before is not None and shape.drafted:
            known = self.costs.known(shape)
            # Any one step may be long for other reasons: drafts answer for what such steps take.
            lost = min(_TRIAL, seconds / before - 1) if known is None else known / before
            self._spare += tokens / shape.answers - 1 - lost
        elif before is not None and not planned:
            # It waited until drafts had landed, or for what they were to be.
            self._spare -= min(_WAITED, max(0.0, seconds / before - 1))
        self._spare = max(-_MOST_OWED, min(self._spare, _MOST_LOST))

    def _measures_anew(self, answers: int) -> bool:
        return self._stale.get(answers, 0) >= _STALE

    @property
    def _most(self) -> int:
        return self.costs.widths[-1] - 1

    def _best(
        self,
        answers: int,
        plain: float,
        rows: Sequence[tuple[float, Sequence[float]]],
        part: float,
    ) -> int:
        """Drafts of a row with which a step gives the most tokens a second; 0 where none gain.
        rows: how likely each has drafts, and how many of 1, 2, .. of them hold. part: of the known
        costs of drafts."""
        drafted = min(answers, max(1, round(sum(found for found, _ in rows))))
        best, rate = 0, _GAINS * answers / plain
        for width in self.costs.widths:
            shape = StepShape(answers - drafted, drafted, width)
            held = sum(found * gains[min(width - 1, len(gains)) - 1] for found, gains in rows)
            seconds = plain + part * self.costs.more(shape)
            if answers + held > rate * seconds:
                best, rate = width - 1, (answers + held) / seconds
            if self.costs.known(shape) is None:
                # What more drafts take shows once it is known what these do.
                break
        return best


def _hoped(
    rows: Sequence[tuple[float, Sequence[float]]], drafting: Collection[Drafting]
) -> list[tuple[float, Sequence[float]]]:
    """The rows, as they may be where what speaks against drafts is out of date."""
    return [
        (1.0, [*accumulate(_UNMEASURED**place for place in range(1, len(gains) + 1))])
        if one.guesses
        else (found, gains)
        for (found, gains), one in zip(rows, drafting, strict=True)
    ]
