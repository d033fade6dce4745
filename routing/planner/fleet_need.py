"""How many nodes of each role the observations ask for. Pure."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from .decode_need import DecodeLoad, StepLine, decode_feasible, decode_nodes
from .observation import NodeRole, Observation
from .policy import PlanPolicy
from .prefill_need import prefill_feasible, prefill_nodes
from .trend import level_of, trend_of
from .waiting import ServiceTimes

_LEAST_VARIATION = 0.05
_LONG_WAIT = 0.5
"""Of the target, by which prompts that come now are late where they are long."""


@dataclass(frozen=True)
class FleetNeed:
    """By role. now: nodes without which targets are missed, now or before another could start.
    keep: those that must stay where nodes are taken away. feasible: whether any number meets the
    targets."""

    now: dict[NodeRole, int]
    keep: dict[NodeRole, int]
    feasible: dict[NodeRole, bool]


def need_of(history: Sequence[Observation], policy: PlanPolicy) -> FleetNeed:
    """history: at least one, of the policy's window at most."""
    prefill, decode = _of_prefill(history, policy), _of_decode(history, policy)
    roles = {NodeRole.PREFILL: prefill, NodeRole.DECODE: decode}
    bounds = policy.bounds
    least = {NodeRole.PREFILL: bounds.prefill, NodeRole.DECODE: bounds.decode}
    now = {role: max(least[role], need[0]) for role, need in roles.items()}
    return FleetNeed(
        now=now,
        keep={role: max(now[role], need[1]) for role, need in roles.items()},
        feasible={role: need[2] for role, need in roles.items()},
    )


def _of_prefill(history: Sequence[Observation], policy: PlanPolicy) -> tuple[int, int, bool]:
    targets, pace, most = policy.targets, policy.pace, policy.bounds.most
    times = np.array([each.at for each in history])
    trend = trend_of(times, np.array([each.prefill.work for each in history]), pace)
    service = _service(history)
    late = _late_work(history, policy)
    # It must be worked off beside what comes.
    behind = min(most, math.ceil(trend.now + late / pace.clear)) if late else 0
    feasible = service is None or prefill_feasible(service, targets)
    now = max(prefill_nodes(trend.soon, service, targets, most), behind)
    keep = prefill_nodes(trend.settled * (1 + pace.room), service, targets, most)
    return now, max(now, keep), feasible


def _late_work(history: Sequence[Observation], policy: PlanPolicy) -> float:
    """Seconds of prefill that wait, where they make prompts late; else 0."""
    times = np.array([each.at for each in history])
    backlog = np.array([each.prefill.backlog for each in history])
    waiting = level_of(times, backlog, policy.pace.quick)
    ready = max(1, history[-1].nodes[NodeRole.PREFILL].ready)
    return waiting if waiting > _LONG_WAIT * policy.targets.first_token * ready else 0.0


def _service(history: Sequence[Observation]) -> ServiceTimes | None:
    """Of the prompts that ended; each observation counts by its work."""
    known = [each.prefill for each in history if each.prefill.mean > 0 and each.prefill.work > 0]
    prompts = sum(each.work / each.mean for each in known)
    if not prompts:
        return None
    mean = sum(each.work for each in known) / prompts
    square = sum(each.square * each.work / each.mean for each in known) / prompts
    return ServiceTimes(mean, max(_LEAST_VARIATION, square / mean**2 - 1))


def _of_decode(history: Sequence[Observation], policy: PlanPolicy) -> tuple[int, int, bool]:
    targets, pace, most = policy.targets, policy.pace, policy.bounds.most
    times = np.array([each.at for each in history])
    seen = [each.decode for each in history]
    line = StepLine.fitted([(each.batch, each.step) for each in seen])
    tokens = trend_of(times, np.array([each.tokens for each in seen]), pace)
    answers = trend_of(times, np.array([each.running + each.waiting for each in seen]), pace)
    held = level_of(times, np.array([each.held for each in seen]), pace.level)
    # What is worked off of prefill's queue is asked of these nodes beside what comes.
    work = level_of(times, np.array([each.prefill.work for each in history]), pace.quick)
    passed_on = 1 + _late_work(history, policy) / (pace.clear * work) if work > 0 else 1.0
    soon = max(tokens.soon, tokens.now * passed_on)
    now = decode_nodes(DecodeLoad(soon, answers.now, held), line, targets, most)
    more = 1 + pace.room
    settled = DecodeLoad(tokens.settled * more, answers.settled * more, held)
    keep = decode_nodes(settled, line, targets, most)
    return now, max(now, keep), line is None or decode_feasible(line, targets)
