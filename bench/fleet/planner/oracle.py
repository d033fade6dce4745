"""The least nodes that a day needs, for one who knows it: nodes are ordered so early that they are
ready when they are needed, and leave as soon as they are not.

Of schedules that follow the demand with more or less to spare, for each role on its own, the
cheapest is taken with which `SHARE` of the requests are in time.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from tasuki.routing.planner.fleet_plan import (
    Action,
    DecodeLoad,
    ServiceTimes,
    StepLine,
    decode_nodes,
    prefill_nodes,
)
from tasuki.routing.planner.observation import NodeRole, Observation
from tasuki.routing.planner.policy import ServiceTargets

from .day import Day
from .outcome import DayOutcome, outcome
from .pools import DecodeSpeed
from .simulated_fleet import (
    OBSERVED_SECONDS,
    DayCounts,
    NodeTimes,
    SimulatedFleet,
)

SHARE = 0.999
_MOST = 1000
_SMOOTH = 6
"""Looks over which demand is averaged, the present one in the middle."""
_DIP = 24
"""Looks: a node is kept through what is shorter than its start would be."""
_TRIALS = 5
_LOW, _HIGH = 0.85, 1.1

Counts = NDArray[np.int64]


@dataclass(frozen=True)
class Schedule:
    """Nodes of each role, by look."""

    prefill: Counts
    decode: Counts


class OracleDay:
    def __init__(
        self, day: Day, speed: DecodeSpeed, times: NodeTimes, targets: ServiceTargets
    ) -> None:
        self._day, self._speed, self._times = day, speed, times
        self._targets = ServiceTargets(targets.first_token, targets.per_token, 0.99)
        looks = int(day.came[-1] / OBSERVED_SECONDS) + 2
        look = (day.came / OBSERVED_SECONDS).astype(int)
        self._work = _smooth(np.bincount(look, day.prefill, looks)) / OBSERVED_SECONDS
        self._tokens = _smooth(np.bincount(look, day.answer, looks)) / OBSERVED_SECONDS
        mean = float(day.prefill.mean())
        self._service = ServiceTimes(mean, float((day.prefill**2).mean()) / mean**2 - 1)
        context = float(np.average(day.context + day.answer, weights=day.answer))
        self._line = StepLine(speed.fixed, speed.answer + speed.token * context)
        self._held = context / speed.memory

    def cheapest(self, show: Callable[[str], None]) -> tuple[DayCounts, DayOutcome]:
        """Both roles are searched at once, each by the targets that it decides."""
        ranges = {role: [_LOW, _HIGH] for role in NodeRole}
        best: tuple[DayCounts, DayOutcome] | None = None
        for trial in range(_TRIALS):
            spare = {role: sum(ends) / 2 for role, ends in ranges.items()}
            counts = self._played(spare)
            reached = outcome(self._day, counts, self._targets)
            show(f"oracle {trial}: {spare} {reached.in_time:.5f} {reached.node_hours:.1f}")
            if reached.in_time >= SHARE and (
                best is None or reached.node_hours < best[1].node_hours
            ):
                best = counts, reached
            each = 1 - (1 - SHARE) / 2
            met = {NodeRole.PREFILL: reached.first_token, NodeRole.DECODE: reached.per_token}
            for role, ends in ranges.items():
                ends[1 if met[role] >= each else 0] = spare[role]
        if best is None:
            raise ValueError("no schedule of the oracle meets the targets: they cannot be met")
        return best

    def schedule(self, spare: dict[NodeRole, float]) -> Schedule:
        """spare: times the demand."""
        prefill = [
            max(1, self._prefill_nodes(work * spare[NodeRole.PREFILL])) for work in self._work
        ]
        decode = [
            max(1, self._decode_nodes(tokens * spare[NodeRole.DECODE])) for tokens in self._tokens
        ]
        return Schedule(_closed(prefill), _closed(decode))

    def _prefill_nodes(self, work: float) -> int:
        return prefill_nodes(work, self._service, self._targets, _MOST)

    def _decode_nodes(self, tokens: float) -> int:
        return decode_nodes(DecodeLoad(tokens, 0.0, self._held), self._line, self._targets, _MOST)

    def _played(self, spare: dict[NodeRole, float]) -> DayCounts:
        schedule = self.schedule(spare)
        first = {
            NodeRole.PREFILL: int(schedule.prefill[0]),
            NodeRole.DECODE: int(schedule.decode[0]),
        }
        fleet = SimulatedFleet(self._day, self._speed, self._times, first, 0)

        def follow(seen: Observation) -> tuple[Action, ...]:
            look = min(round(seen.at / OBSERVED_SECONDS), len(schedule.prefill) - 1)
            for role, counts in (
                (NodeRole.PREFILL, schedule.prefill),
                (NodeRole.DECODE, schedule.decode),
            ):
                wanted = int(counts[look])
                for _ in range(wanted - fleet.ready(role)):
                    fleet.place(role, seen.at, ready=True)
                for _ in range(fleet.ready(role) - wanted):
                    fleet.drain(role, seen.at)
            return ()

        return fleet.run(follow)


def _smooth(values: NDArray[Any]) -> NDArray[np.float64]:
    window = np.ones(_SMOOTH)
    many = np.convolve(np.ones(len(values)), window, "same")
    return np.asarray(np.convolve(values, window, "same") / many)


def _closed(counts: Sequence[int]) -> Counts:
    """Without dips that are shorter than _DIP."""
    edge = np.pad(np.asarray(counts), (_DIP, _DIP), mode="edge")
    highest = sliding_window_view(edge, _DIP + 1).max(axis=1)
    return np.asarray(sliding_window_view(highest, _DIP + 1).min(axis=1))
