"""How long steps of answers take, with drafts and without, by what the last ones took.

Seconds from the end of a step on the device to the end of the next one, so that what the host takes
between them counts: a step with drafts is not planned while the one before runs. Of a step with
drafts it keeps what it takes more than one without, since contexts that grow make both longer.
Knows rows and seconds, no requests. Thread rule: the engine loop's.
"""

from bisect import bisect_left
from collections import defaultdict, deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import partial

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
