"""What a simulation is asked for."""

from dataclasses import dataclass
from typing import Literal

from .workload import Arrivals

RouteName = Literal["cost", "sticky", "random", "fewest-rooms", "one-cache", "pull"]


@dataclass(frozen=True)
class FleetSettings:
    """gb: of each node's arena, GiB. seconds: turns that come later are left out; warm_up: those
    that come earlier are not counted. tflops, fixed_ms: of a prefill; tflops None: as measured,
    without fixed_ms. itl_ms: of an answer's token. report_seconds: between a node's reports of its
    load; report_delay: until one has come; index_seconds: until a change of a tree is in the index.
    lost: share of a tree's messages that never come. dead: share of the nodes that die halfway, at
    least one where it is above 0; lying: of those that list every prompt as held whole, likewise.
    link_gb: of a node's link, 10^9 bytes a second."""

    model: str
    nodes: int
    gb: float
    route: RouteName
    policy: str
    streams: int
    arrivals: Arrivals
    seed: int
    deciders: int
    seconds: float
    warm_up: float
    tflops: float | None
    fixed_ms: float
    itl_ms: float
    report_seconds: float
    report_delay: float
    index_seconds: float
    lost: float
    dead: float
    link_gb: float
    lying: float = 0.0
