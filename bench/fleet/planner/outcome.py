"""What a simulated day came to: share of requests in time, node-hours, how often it turned."""

from dataclasses import dataclass
from math import inf

import numpy as np

from tasuki.routing.planner.observation import NodeRole
from tasuki.routing.planner.policy import ServiceTargets

from .day import Day
from .simulated_fleet import DayCounts

TURNED_WITHIN = 600.0
"""Seconds between a node that a role lost and one that it got, in either order, for a turn."""
_CROWD_SEEN = 300.0
_PART = 300.0


@dataclass(frozen=True)
class DayOutcome:
    """in_time: share of requests that met both targets; first_token, per_token: each. worst: of
    the worst five minutes of it. turns: changes of a role's nodes against its last one within
    TURNED_WITHIN; at_crowds: those of them where a crowd had just come. requests: all; unended:
    without an answer's end."""

    in_time: float
    first_token: float
    per_token: float
    worst: float
    node_hours: float
    turns: int
    at_crowds: int
    role_changes: int
    placed: int
    drained: int
    most_nodes: int
    requests: int
    unended: int


def outcome(day: Day, counts: DayCounts, targets: ServiceTargets) -> DayOutcome:
    first = counts.first_token <= targets.first_token
    each = counts.per_token <= targets.per_token
    both = first & each
    part = (day.came // _PART).astype(int)
    many = np.bincount(part)
    good = np.bincount(part, weights=both)
    turns = list(_turns(counts))
    return DayOutcome(
        in_time=float(both.mean()),
        first_token=float(first.mean()),
        per_token=float(each.mean()),
        worst=float((good[many > 0] / many[many > 0]).min()),
        node_hours=counts.node_seconds / 3600,
        turns=len(turns),
        at_crowds=sum(any(0 <= at - crowd <= _CROWD_SEEN for crowd in day.crowds) for at in turns),
        role_changes=counts.changes,
        placed=sum(n for _, _, n in counts.added if n > 0) - counts.changes,
        drained=-sum(n for _, _, n in counts.added if n < 0) - counts.changes,
        most_nodes=max((p + d for _, p, d in counts.nodes), default=0),
        requests=len(day.came),
        unended=int(np.isinf(counts.per_token).sum()),
    )


def _turns(counts: DayCounts) -> list[float]:
    """When a role got a node shortly after it had lost one, or lost one shortly after it had got
    one: each change against the one before it."""
    last: dict[NodeRole, tuple[float, bool]] = {}
    found = []
    for at, role, nodes in counts.added:
        before, was_more = last.get(role, (-inf, False))
        if was_more is not (nodes > 0) and at - before <= TURNED_WITHIN:
            found.append(at)
        last[role] = at, nodes > 0
    return found
