"""How many decode nodes a load needs: by the time of a step, and by memory. Pure."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Self

from .policy import ServiceTargets

FULL = 0.9
"""Of a node's memory that answers may hold; the rest is for what grows."""

_NORMAL = NormalDist()
_DOUBLED = 32.0
"""Of so many answers a step is guessed to take twice as long as of none: weights and caches are
read side by side. It decides only until batches of two sizes were seen."""
_PRIOR = 0.02
"""Weight of that guess, in squares of the mean batch."""
_STRETCHED = 2.0
"""Where no batch meets the target: a step takes at most that many times the shortest one."""


@dataclass(frozen=True)
class StepLine:
    """Seconds of a step: fixed, and for each answer in the batch."""

    fixed: float
    each: float

    @classmethod
    def fitted(cls, points: Sequence[tuple[float, float]]) -> Self | None:
        """points: batch and seconds of a step. None without a point."""
        known = [(batch, step) for batch, step in points if batch > 0 and step > 0]
        if not known:
            return None
        many = len(known)
        batch = sum(each for each, _ in known) / many
        step = sum(each for _, each in known) / many
        squares = sum((each - batch) ** 2 for each, _ in known) / many
        products = sum((b - batch) * (s - step) for b, s in known) / many
        prior = _PRIOR * batch * batch
        slope = (products + prior * step / (batch + _DOUBLED)) / (squares + prior)
        slope = min(max(slope, 0.01 * step / batch), 0.95 * step / batch)
        return cls(step - slope * batch, slope)

    def seconds(self, batch: float) -> float:
        return self.fixed + self.each * batch

    def batch(self, tokens: float) -> float:
        """Of a node that is asked for so many tokens a second; infinite where it cannot keep up."""
        free = 1 - tokens * self.each
        return tokens * self.fixed / free if free > 0 else math.inf


@dataclass(frozen=True)
class DecodeLoad:
    """tokens: asked for, a second. answers: that run or wait. held: of a node's memory, by one."""

    tokens: float
    answers: float
    held: float


def step_target(line: StepLine, targets: ServiceTargets) -> float:
    """What a step may take: the target, or where no batch meets it as much as is of use."""
    shortest = line.seconds(1)
    return targets.per_token if shortest <= targets.per_token else _STRETCHED * shortest


def decode_feasible(line: StepLine, targets: ServiceTargets) -> bool:
    return line.seconds(1) <= targets.per_token


def decode_nodes(
    load: DecodeLoad, line: StepLine | None, targets: ServiceTargets, most: int
) -> int:
    """The least that meets the targets, at most `most`. line: None where no step was
    observed yet: by memory alone."""
    if load.tokens <= 0 and load.answers <= 0:
        return 0
    # Fewer have not the memory, or cannot keep up at all.
    least = max(1.0, load.answers * load.held / FULL, load.tokens * line.each if line else 0.0)
    nodes = math.floor(min(least, most))
    while nodes < most and not _enough(nodes, load, line, targets):
        nodes += 1
    return nodes


def _enough(nodes: int, load: DecodeLoad, line: StepLine | None, targets: ServiceTargets) -> bool:
    batch = load.answers / nodes
    if line is not None:
        batch = max(batch, line.batch(load.tokens / nodes))
    if math.isinf(batch):
        return False
    # New answers go to the smallest batch, so that batches vary as their sum does.
    most = batch + _NORMAL.inv_cdf(targets.share) * math.sqrt(batch / nodes)
    if line is not None and most > 1 and line.seconds(most) > step_target(line, targets):
        return False
    return most * load.held <= FULL or batch <= 1
