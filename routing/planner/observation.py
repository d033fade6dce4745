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
    """The number of nodes of one role. ready: nodes taking requests. coming: nodes placed or
    changing to this role, and not ready yet. A draining node is neither."""

    ready: int
    coming: int = 0

    @property
    def all(self) -> int:
        return self.ready + self.coming


@dataclass(frozen=True)
class PrefillObserved:
    """Sums over all prefill nodes. work: offered seconds of uncached prefill a second; one node
    does one. mean, square: means of a prompt's seconds of uncached prefill, and of their squares; 0
    if no prompt ended. backlog: waiting seconds of prefill."""

    work: float
    mean: float = 0.0
    square: float = 0.0
    backlog: float = 0.0


@dataclass(frozen=True)
class DecodeObserved:
    """Sums over all decode nodes. tokens: requested tokens a second. running: answers being
    generated. waiting: answers without memory. step: mean seconds of a step. batch: running answers
    for each node. step and batch: only warm nodes; 0 if none is warm. held: share of one node's
    cache memory for a running answer."""

    tokens: float
    running: float = 0.0
    waiting: float = 0.0
    step: float = 0.0
    batch: float = 0.0
    held: float = 0.0


@dataclass(frozen=True)
class Observation:
    """A fleet's load and state over some seconds, with its number of nodes.

    at: monotonic seconds of its end. nodes: count at `at`, before any resulting action.
    """

    at: float
    nodes: dict[NodeRole, NodeCount]
    prefill: PrefillObserved
    decode: DecodeObserved


Floats = NDArray[np.float64]

_MOST_FORESEEN = 1.5
"""Limit of the forecast as a multiple of the present level, because a new crowd stops growing."""
_SURE = 2.0
"""Number of standard errors a slope must exceed to count."""
_SURE_OF_A_BURST = 4.0
"""The same for a burst. It is tested 17,280 times a day for each role. At two errors, noise
triggers every few minutes; at four, once in some days. A real crowd reaches ten."""


@dataclass(frozen=True)
class Trend:
    """The present and coming demand, estimated from recent demand. Pure.

    Invariant: the result scales with the values.

    now: demand to serve at once. soon: largest demand expected within `ahead`. settled: highest
    past and expected demand over the period considered before a node's removal.
    """

    now: float
    soon: float
    settled: float


def trend_of(times: Floats, values: Floats, pace: Pace) -> Trend:
    """Return the trend. times: ascending seconds of the observations; at least one."""
    level = level_of(times, values, pace.level)
    burst = values[_since(times, pace.quick) :]
    noise = _noise(values)
    error, height = noise / len(burst) ** 0.5, float(burst.mean())
    now = height if height > level + _SURE_OF_A_BURST * error else level
    ahead = min(_foreseen(times, values, noise, pace.ahead), _MOST_FORESEEN * level)
    soon = max(now, ahead)
    return Trend(now, soon, max(soon, _highest_level(times, values, pace)))


def level_of(times: Floats, values: Floats, seconds: float) -> float:
    """Return the mean over the last seconds. REQUIRES: at least one value."""
    return float(values[_since(times, seconds) :].mean())


def _since(times: Floats, seconds: float) -> int:
    """Return the index of the first observation in the last seconds, or of the last observation."""
    first = int(np.searchsorted(times, times[-1] - seconds, side="right"))
    return min(first, len(times) - 1)


def _noise(values: Floats) -> float:
    """Return the standard deviation of one value, estimated from differences of neighbours. A trend
    so does not count as noise."""
    if len(values) < 3:
        return 0.0
    steps = values[1:] - values[:-1]
    return float(np.sqrt(steps @ steps / (2 * len(steps))))


def _foreseen(times: Floats, values: Floats, noise: float, ahead: float) -> float:
    """Return the value of the line through all values `ahead` seconds later. Only the certain part
    of its slope counts."""
    middle, mean = float(times.mean()), float(values.mean())
    apart = times - middle
    squares = float(apart @ apart)
    if squares == 0:
        return mean
    slope, error = float(apart @ values) / squares, _SURE * noise / squares**0.5
    sure = float(np.copysign(max(0.0, abs(slope) - error), slope))
    return max(0.0, mean + sure * (float(times[-1]) + ahead - middle))


def _highest_level(times: Floats, values: Floats, pace: Pace) -> float:
    """Return the highest mean over `level` among the means whose period ended within `settle`."""
    ends = np.arange(_since(times, pace.settle), len(times))
    begins = np.searchsorted(times, times[ends] - pace.level, side="right")
    sums = np.concatenate(([0.0], np.cumsum(values)))
    return float(((sums[ends + 1] - sums[begins]) / (ends + 1 - begins)).max())
