"""Recent load of a fleet, and the load expected from it.

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
    """Number of nodes of one role. ready: nodes taking requests. coming: nodes being started or
    changing to this role. A draining node is in neither number."""

    ready: int
    coming: int = 0

    @property
    def all(self) -> int:
        return self.ready + self.coming


@dataclass(frozen=True)
class PrefillObserved:
    """Load of all prefill nodes. work: seconds of uncached prefill offered in a second; one node
    computes one. mean, square: mean over prompts of the seconds of uncached prefill, and of their
    squares; 0 if no prompt ended. backlog: waiting seconds of prefill."""

    work: float
    mean: float = 0.0
    square: float = 0.0
    backlog: float = 0.0


@dataclass(frozen=True)
class DecodeObserved:
    """Load of all decode nodes. tokens: requested tokens a second. running: answers being
    generated. waiting: answers without memory. step: mean seconds of a decode step. batch: running
    answers on each node. step and batch cover only warm nodes; 0 if none is warm. held: share of
    one node's cache memory for a running answer."""

    tokens: float
    running: float = 0.0
    waiting: float = 0.0
    step: float = 0.0
    batch: float = 0.0
    held: float = 0.0


@dataclass(frozen=True)
class Observation:
    """Observation of a fleet over some seconds: load, state and number of nodes.

    at: end of the period in monotonic seconds. nodes: number of nodes by role at this time, before
    any resulting action.
    """

    at: float
    nodes: dict[NodeRole, NodeCount]
    prefill: PrefillObserved
    decode: DecodeObserved


Floats = NDArray[np.float64]

_MOST_FORESEEN = 1.5
"""Largest forecast as a multiple of the present demand, because a new crowd stops growing."""
_SURE = 2.0
"""Number of standard errors a trend's slope must exceed to count."""
_SURE_OF_A_BURST = 4.0
"""Number of standard errors a burst must exceed to count. A burst is tested for 17,280 times a day
for each role. At two errors, noise triggers every few minutes; at four, once in some days. A real
crowd reaches ten."""


@dataclass(frozen=True)
class Trend:
    """Present and coming demand, estimated from recent demand. Pure.

    Invariant: the result scales with the values.

    now: demand to serve immediately. soon: largest demand expected within the forecast time.
    settled: highest past and expected demand of the period considered before a node's removal.
    """

    now: float
    soon: float
    settled: float


def trend_of(times: Floats, values: Floats, pace: Pace) -> Trend:
    """Return the trend of a demand. times: ascending seconds of the observations; at least one.
    values: observed demand."""
    level = level_of(times, values, pace.level)
    burst = values[_since(times, pace.quick) :]
    noise = _noise(values)
    error, height = noise / len(burst) ** 0.5, float(burst.mean())
    now = height if height > level + _SURE_OF_A_BURST * error else level
    ahead = min(_foreseen(times, values, noise, pace.ahead), _MOST_FORESEEN * level)
    soon = max(now, ahead)
    return Trend(now, soon, max(soon, _highest_level(times, values, pace)))


def level_of(times: Floats, values: Floats, seconds: float) -> float:
    """Return the mean value over the last `seconds`. REQUIRES: at least one value."""
    return float(values[_since(times, seconds) :].mean())


def _since(times: Floats, seconds: float) -> int:
    """Return the index of the first observation within the last `seconds`; of the last observation
    if none is."""
    first = int(np.searchsorted(times, times[-1] - seconds, side="right"))
    return min(first, len(times) - 1)


def _noise(values: Floats) -> float:
    """Return the standard deviation of one value, estimated from differences of neighbours. So a
    trend does not count as noise."""
    if len(values) < 3:
        return 0.0
    steps = values[1:] - values[:-1]
    return float(np.sqrt(steps @ steps / (2 * len(steps))))


def _foreseen(times: Floats, values: Floats, noise: float, ahead: float) -> float:
    """Return the expected value `ahead` seconds after the last, on a line fitted to all values.
    Only the statistically certain part of its slope counts."""
    middle, mean = float(times.mean()), float(values.mean())
    apart = times - middle
    squares = float(apart @ apart)
    if squares == 0:
        return mean
    slope, error = float(apart @ values) / squares, _SURE * noise / squares**0.5
    sure = float(np.copysign(max(0.0, abs(slope) - error), slope))
    return max(0.0, mean + sure * (float(times[-1]) + ahead - middle))


def _highest_level(times: Floats, values: Floats, pace: Pace) -> float:
    """Return the highest mean over pace.level seconds, among such means ending within the last
    pace.settle seconds."""
    ends = np.arange(_since(times, pace.settle), len(times))
    begins = np.searchsorted(times, times[ends] - pace.level, side="right")
    sums = np.concatenate(([0.0], np.cumsum(values)))
    return float(((sums[ends + 1] - sums[begins]) / (ends + 1 - begins)).max())
