"""Policy of a planner: the service targets, the bounds of node numbers, and the times of its
decisions."""

import math
from dataclasses import dataclass, field, fields


def _positive(of: object) -> None:
    for item in fields(of):  # type: ignore[arg-type]
        value = getattr(of, item.name)
        if isinstance(value, float) and not (math.isfinite(value) and value > 0):
            raise ValueError(f"{item.name} must be a number over 0, not {value}")


@dataclass(frozen=True)
class ServiceTargets:
    """Service targets. first_token: seconds from a prompt's arrival to its first token. per_token:
    seconds of a decode step. share: part of the requests to meet each target."""

    first_token: float = 2.0
    per_token: float = 0.05
    share: float = 0.95

    def __post_init__(self) -> None:
        _positive(self)
        if not 0.5 <= self.share < 1:
            raise ValueError(f"share must be in [0.5, 1), not {self.share}")


@dataclass(frozen=True)
class NodeBounds:
    """Bounds of node numbers. prefill, decode: least number of nodes of each role. least, most:
    bounds of all nodes together. If least equals most, nodes only change their roles."""

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
    """Times of a planner, in seconds. window: length of the observations used for trends; no node
    is taken away before it is full. level, quick: averaging times for demand and for bursts. ahead:
    time of the forecast. settle: time from the last addition to the first removal of a node, and
    period for the highest demand. cool_down: time between two removals. clear: time for clearing a
    backlog. room: extra demand, as a share; after a removal the rest must still meet the targets
    with it."""

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
