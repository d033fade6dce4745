"""What a simulated day came to: share of requests in time, node-hours, how often it turned; and
days as a table, with the means and half of their 95% intervals.
"""

from dataclasses import dataclass
from math import inf
from statistics import fmean
from typing import Any

import numpy as np

from tasuki.bench.fleet.simulate import half_interval
from tasuki.bench.measure.host import described
from tasuki.bench.measure.results import Document, Section, markdown_table
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


_COLUMNS = (
    *("seed", "in time", "first token", "each token", "worst 5 minutes"),
    *("node-hours", "x the oracle's", "turns", "at crowds", "role changes"),
    *("most nodes", "oracle: in time", "node-hours", "requests", "not ended"),
)


def describe(result: Document) -> Section:
    """Simulated days on a page: a row of each, and the means with half of their 95% intervals."""
    in_time = _with_interval([row["planner"]["in_time"] for row in result["rows"]], 5)
    ratio = _with_interval([row["node_hours_ratio"] for row in result["rows"]], 3)
    day, targets = result["day"], result["policy"]["targets"]
    lines = [
        "By `python -m tasuki.bench.fleet.planner.main`; what is modelled: docs/planner.md. Days "
        f"of {day['seconds'] / 3600:g} hours, {day['rate']:g} requests a second in the mean, "
        f"{day['crowds']} crowds each. In time: first token within {targets['first_token']:g} s "
        f"and {targets['per_token'] * 1e3:g} ms a token.",
        "",
        *markdown_table(_COLUMNS, map(_cells, result["rows"])),
        "",
        f"In time {in_time}, node-hours {ratio} x the oracle's.",
        "",
        f"{described(result['host'])}.",
    ]
    return Section("The planner, simulated", "\n".join(lines))


def _cells(row: dict[str, Any]) -> list[str]:
    planned, oracle = row["planner"], row["oracle"]
    return [
        str(row["seed"]),
        *(f"{planned[name]:.4f}" for name in ("in_time", "first_token", "per_token")),
        f"{planned['worst']:.2f}",
        f"{planned['node_hours']:.1f}",
        f"{row['node_hours_ratio']:.3f}",
        *(str(planned[n]) for n in ("turns", "at_crowds", "role_changes", "most_nodes")),
        f"{oracle['in_time']:.4f}",
        f"{oracle['node_hours']:.1f}",
        str(planned["requests"]),
        str(planned["unended"]),
    ]


def _with_interval(values: list[float], digits: int) -> str:
    mean = f"{fmean(values):.{digits}f}"
    return mean if len(values) < 2 else f"{mean} ± {half_interval(values):.{digits}f}"
