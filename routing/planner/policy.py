"""What a planner aims at, within which bounds, and how fast it acts."""

import math
from dataclasses import dataclass, field, fields


def _positive(of: object) -> None:
    for item in fields(of):  # type: ignore[arg-type]
        value = getattr(of, item.name)
        if isinstance(value, float) and not (math.isfinite(value) and value > 0):
            raise ValueError(f"{item.name} must be a number over 0, not {value}")


@dataclass(frozen=True)
class ServiceTargets:
    """first_token: seconds from a prompt's arrival. per_token: seconds of a step. share: of the
    requests that are to meet each."""

    first_token: float = 2.0
    per_token: float = 0.05
    share: float = 0.95

    def __post_init__(self) -> None:
        _positive(self)
        if not 0.5 <= self.share < 1:
            raise ValueError(f"share must be in [0.5, 1), not {self.share}")


@dataclass(frozen=True)
class NodeBounds:
    """Least of each role; least and most of all together. Where these two are equal, nodes change
    their roles alone."""

    prefill: int = 1
    decode: int = 1
    least: int = 2
    most: int = 64

    def __post_init__(self) -> None:
        if self.prefill < 1 or self.decode < 1:
            raise ValueError("at least one node of each role must be kept")
        if self.most < max(self.least, self.prefill + self.decode):
            raise ValueError("most must be at least `least`, and the least of both roles together")


@dataclass(frozen=True)
class Pace:
    """Seconds. window: of observations that trends are read from; nothing is taken away before it
    is full. level, quick: over which load is averaged, and over which a burst is. ahead: demand is
    foreseen for so long. settle: from the last node that was added until one is taken away, and
    over which the highest level counts. cool_down: between two that are taken away. clear: a
    backlog is to be gone within. room: where nodes are taken away, the others meet the targets with
    so much more demand, as a share."""

    window: float = 600.0
    level: float = 60.0
    quick: float = 15.0
    ahead: float = 180.0
    settle: float = 600.0
    cool_down: float = 30.0
    clear: float = 90.0
    room: float = 0.2

    def __post_init__(self) -> None:
        _positive(self)
        if max(self.level, self.settle, self.cool_down) > self.window:
            raise ValueError("window must be at least level, settle and cool_down")


@dataclass(frozen=True)
class PlanPolicy:
    targets: ServiceTargets = field(default_factory=ServiceTargets)
    bounds: NodeBounds = field(default_factory=NodeBounds)
    pace: Pace = field(default_factory=Pace)
