"""How long prompts wait for one of several nodes: M/G/n by Erlang's C and Allen and Cunneen.

Exact for exponential prompts on one queue, an approximation for others. Pure.
"""

import math
from dataclasses import dataclass
from itertools import pairwise
from statistics import NormalDist

_EDGES = (0.0, 0.2, 0.4, 0.6, 0.75, 0.85, 0.92, 0.96, 0.98, 0.99, 0.995, 0.999, 1.0)
_NORMAL = NormalDist()
_POINTS = tuple((_NORMAL.inv_cdf((low + high) / 2), high - low) for low, high in pairwise(_EDGES))
"""Of a normal distribution: values, and how much of it each stands for."""


@dataclass(frozen=True)
class ServiceTimes:
    """Log-normal. mean: seconds, over 0. variation: the variance over the mean's square."""

    mean: float
    variation: float

    def points(self) -> list[tuple[float, float]]:
        """Seconds, and the share of prompts that they stand for."""
        sigma = math.sqrt(math.log1p(self.variation))
        middle = math.log(self.mean) - sigma * sigma / 2
        return [(math.exp(middle + sigma * z), share) for z, share in _POINTS]

    def over(self, seconds: float) -> float:
        """Share of the prompts that take longer, with nobody before them."""
        return sum(share for each, share in self.points() if each > seconds)


def waiting_share(nodes: int, work: float) -> float:
    """Erlang's C: of the prompts that wait at all. work: nodes' worth of it that is asked for."""
    if work >= nodes:
        return 1.0
    blocked = 1.0
    for node in range(1, nodes + 1):
        blocked = work * blocked / (node + work * blocked)
    return blocked / (1 - work / nodes * (1 - blocked))


def late_share(nodes: int, work: float, service: ServiceTimes, target: float) -> float:
    """Of the prompts whose wait and own time exceed the target, seconds."""
    if work >= nodes:
        return 1.0
    waits = waiting_share(nodes, work)
    mean_wait = service.mean * (1 + service.variation) / 2 / (nodes - work)
    late = 0.0
    for seconds, share in service.points():
        left = target - seconds
        late += share * (1.0 if left < 0 else waits * math.exp(-left / mean_wait))
    return late
