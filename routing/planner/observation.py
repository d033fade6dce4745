"""A fleet's recent load, and the load expected from it.

Pure.
"""

from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from .policy import Pace


class NodeRole(StrEnum):
    PREFILL = "prefill"
    DECODE = "decode"

    @property
    def other(self) -> "NodeRole":
        return NodeRole.DECODE if self is NodeRole.PREFILL else NodeRole.PREFILL


@dataclass(frozen=True)
class NodeCount:
    """Of one role. ready: nodes that take requests. coming: nodes that were placed, or are changing
    to this role, and do not take any yet. A node that drains is neither."""

    ready: int
    coming: int = 0

    @property
    def all(self) -> int:
        return self.ready + self.coming


@dataclass(frozen=True)
class PrefillObserved:
    """Sums over all prefill nodes. work: seconds of uncached prefill that were asked for, a second;
    of a second's work one node does one. mean, square: of a prompt's seconds of uncached prefill,
    and of their squares; 0 where no prompt ended. backlog: seconds of prefill that wait."""

    work: float
    mean: float = 0.0
    square: float = 0.0
    backlog: float = 0.0


@dataclass(frozen=True)
class DecodeObserved:
    """Sums over all decode nodes. tokens: that were asked for, a second. running: answers that are
    being written; waiting: those for which a node lacks memory. step: mean seconds of a step, and
    batch: running answers a node, both of the nodes that are warm; 0 where none is. held: of one
    node's cache memory, what a running answer holds."""

    tokens: float
    running: float = 0.0
    waiting: float = 0.0
    step: float = 0.0
    batch: float = 0.0
    held: float = 0.0


@dataclass(frozen=True)
class Observation:
    """What a fleet was asked for and how it stood, of some seconds; and how many nodes it then had.

    at: monotonic seconds of its end. nodes: as they were then, before anything that is done because
    of it.
    """

    at: float
    nodes: dict[NodeRole, NodeCount]
    prefill: PrefillObserved
    decode: DecodeObserved


Floats = NDArray[np.float64]

_MOST_FORESEEN = 1.5
"""Times the present level: a crowd that has just come does not grow for ever."""
_SURE = 2.0
"""Standard errors that a slope must exceed to count."""
_SURE_OF_A_BURST = 4.0
"""The same of a burst. It is asked for at each look, 17,280 times a day for each role: at two
errors noise makes one every few minutes, at four one in some days, while a crowd is ten."""


@dataclass(frozen=True)
class Trend:
    """What is asked for now and soon, from what was asked for lately. Pure.

    Invariant: what is returned grows by the factor by which all values do.

    now: to serve at once. soon: at most so much within `ahead`. settled: at least so much was asked
    for, or will be, in the time that decides whether a node may go.
    """

    now: float
    soon: float
    settled: float


def trend_of(times: Floats, values: Floats, pace: Pace) -> Trend:
    """times: seconds, ascending, of observations; at least one."""
    level = level_of(times, values, pace.level)
    burst = values[_since(times, pace.quick) :]
    noise = _noise(values)
    error, height = noise / len(burst) ** 0.5, float(burst.mean())
    now = height if height > level + _SURE_OF_A_BURST * error else level
    ahead = min(_foreseen(times, values, noise, pace.ahead), _MOST_FORESEEN * level)
    soon = max(now, ahead)
    return Trend(now, soon, max(soon, _highest_level(times, values, pace)))


def level_of(times: Floats, values: Floats, seconds: float) -> float:
    """Mean of the last seconds. REQUIRES: at least one."""
    return float(values[_since(times, seconds) :].mean())


def _since(times: Floats, seconds: float) -> int:
    """The first of the last seconds; the last one of all at the latest."""
    first = int(np.searchsorted(times, times[-1] - seconds, side="right"))
    return min(first, len(times) - 1)


def _noise(values: Floats) -> float:
    """Standard deviation of one value, by the differences of neighbours: a trend is none."""
    if len(values) < 3:
        return 0.0
    steps = values[1:] - values[:-1]
    return float(np.sqrt(steps @ steps / (2 * len(steps))))


def _foreseen(times: Floats, values: Floats, noise: float, ahead: float) -> float:
    """The line through all values, so far ahead, as far as its slope is sure."""
    middle, mean = float(times.mean()), float(values.mean())
    apart = times - middle
    squares = float(apart @ apart)
    if squares == 0:
        return mean
    slope, error = float(apart @ values) / squares, _SURE * noise / squares**0.5
    sure = float(np.copysign(max(0.0, abs(slope) - error), slope))
    return max(0.0, mean + sure * (float(times[-1]) + ahead - middle))


def _highest_level(times: Floats, values: Floats, pace: Pace) -> float:
    """Of the means over `level` that ended within `settle`."""
    ends = np.arange(_since(times, pace.settle), len(times))
    begins = np.searchsorted(times, times[ends] - pace.level, side="right")
    sums = np.concatenate(([0.0], np.cumsum(values)))
    return float(((sums[ends + 1] - sums[begins]) / (ends + 1 - begins)).max())
