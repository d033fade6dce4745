"""Changes of a fleet's nodes, and the number of nodes of each role needed for a load. Pure.

States of a fleet, as seen by a plan:
  short     a role has fewer nodes than it needs: spare nodes of the other role change to it, the
            rest is placed
  spare     a role has had more nodes than it needs, with a margin, for `settle`: one node goes
            each `cool_down`, and none while the other role is short
  at rest   neither

Invariants: equal observations give equal plans, so a restarted planner loses nothing. No node is
taken away before the window of observations is full. A role gives no node away if it would be short
afterwards. At most `most` nodes are ready or coming.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import NormalDist
from typing import Self

import numpy as np

from .observation import NodeCount, NodeRole, Observation, level_of, trend_of
from .policy import PlanPolicy, ServiceTargets

_EDGES = (0.0, 0.2, 0.4, 0.6, 0.75, 0.85, 0.92, 0.96, 0.98, 0.99, 0.995, 0.999, 1.0)
_NORMAL = NormalDist()
_POINTS = tuple((_NORMAL.inv_cdf((low + high) / 2), high - low) for low, high in pairwise(_EDGES))
"""Points approximating a normal distribution: value and probability of each."""


@dataclass(frozen=True)
class ServiceTimes:
    """Log-normal distribution of service times, for the waits at several nodes: M/G/n by Erlang's C
    and Allen and Cunneen.

    Exact for exponential prompts on one queue, an approximation for others. Pure.

    mean: seconds, over 0. variation: variance divided by the mean's square.
    """

    mean: float
    variation: float

    def points(self) -> list[tuple[float, float]]:
        """Return points approximating the distribution: (service seconds, share of prompts)
        each."""
        sigma = math.sqrt(math.log1p(self.variation))
        middle = math.log(self.mean) - sigma * sigma / 2
        return [(math.exp(middle + sigma * z), share) for z, share in _POINTS]

    def over(self, seconds: float) -> float:
        """Return the share of prompts with a service time over `seconds`."""
        return sum(share for each, share in self.points() if each > seconds)


def waiting_share(nodes: int, work: float) -> float:
    """Return the share of waiting prompts (Erlang's C), 1 if overloaded. work: in busy nodes."""
    if work >= nodes:
        return 1.0
    blocked = 1.0
    for node in range(1, nodes + 1):
        blocked = work * blocked / (node + work * blocked)
    return blocked / (1 - work / nodes * (1 - blocked))


def late_share(nodes: int, work: float, service: ServiceTimes, target: float) -> float:
    """Return the share of prompts with wait and service time over `target`; 1 if overloaded. work:
    in busy nodes."""
    if work >= nodes:
        return 1.0
    waits = waiting_share(nodes, work)
    mean_wait = service.mean * (1 + service.variation) / 2 / (nodes - work)
    late = 0.0
    for seconds, share in service.points():
        left = target - seconds
        late += share * (1.0 if left < 0 else waits * math.exp(-left / mean_wait))
    return late


BUSY_AT_MOST = 0.8
"""Largest utilization of nodes if no number of nodes meets the target; more nodes would not
help."""
_OWN_SHARE = 0.9
"""Largest part of the allowed late prompts that are late by their service time alone."""


def prefill_feasible(service: ServiceTimes, targets: ServiceTargets) -> bool:
    """Return True if enough prompts meet the first-token target without a wait, with a margin left
    for waits."""
    return service.over(targets.first_token) <= _OWN_SHARE * (1 - targets.share)


def prefill_nodes(
    work: float, service: ServiceTimes | None, targets: ServiceTargets, most: int
) -> int:
    """Return the least number of prefill nodes meeting the first-token target, at most `most`; 0
    without load. Pure.

    If no number meets it, return the least number with a utilization of at most BUSY_AT_MOST. work:
    offered load, in busy nodes. service: prefill times; None if unknown, for utilization alone.
    """
    if work <= 0:
        return 0
    if work >= most:
        return most
    if service is None or not prefill_feasible(service, targets):
        return min(most, math.ceil(work / BUSY_AT_MOST))
    nodes = math.floor(work) + 1
    while (
        nodes < most and late_share(nodes, work, service, targets.first_token) > 1 - targets.share
    ):
        nodes += 1
    return nodes


FULL = 0.9
"""Largest share of a node's memory planned for answers. The rest is for their growth."""


_DOUBLED = 32.0
"""Assumed batch size at twice the time of an empty step, because weights and caches are read
together. The guess decides only until batches of two sizes were observed."""
_PRIOR = 0.02
"""Weight of the guessed step line, in squares of the mean batch."""
_STRETCHED = 2.0
"""Longest allowed step as a multiple of the shortest one, if no batch size meets the target."""


@dataclass(frozen=True)
class StepLine:
    """Time of a decode step in seconds, as a line over the batch size. Pure.

    fixed: seconds of any step. each: seconds for each answer in the batch.
    """

    fixed: float
    each: float

    @classmethod
    def fitted(cls, points: Sequence[tuple[float, float]]) -> Self | None:
        """Return the line fitted to measured steps; None without any. points: (batch size, seconds
        of a step) each."""
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
        """Return the batch size of a node producing `tokens` tokens a second; infinite if it cannot
        keep up."""
        free = 1 - tokens * self.each
        return tokens * self.fixed / free if free > 0 else math.inf


@dataclass(frozen=True)
class DecodeLoad:
    """Load of all decode nodes. tokens: requested tokens a second. answers: running or waiting
    answers. held: share of a node's memory for one answer."""

    tokens: float
    answers: float
    held: float


def step_target(line: StepLine, targets: ServiceTargets) -> float:
    """Return the longest step allowed, in seconds: the per-token target, or a multiple of the
    shortest step if no batch size meets it."""
    shortest = line.seconds(1)
    return targets.per_token if shortest <= targets.per_token else _STRETCHED * shortest


def decode_feasible(line: StepLine, targets: ServiceTargets) -> bool:
    return line.seconds(1) <= targets.per_token


def decode_nodes(
    load: DecodeLoad, line: StepLine | None, targets: ServiceTargets, most: int
) -> int:
    """Return the least number of decode nodes meeting the targets, at most `most`; 0 without load.
    line: step times; None before any was observed: memory alone then decides."""
    if load.tokens <= 0 and load.answers <= 0:
        return 0
    # Fewer nodes do not have the memory, or cannot keep up at all.
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
    # New answers go to the smallest batch, so the batches vary only with their sum.
    most = batch + _NORMAL.inv_cdf(targets.share) * math.sqrt(batch / nodes)
    if line is not None and most > 1 and line.seconds(most) > step_target(line, targets):
        return False
    return most * load.held <= FULL or batch <= 1


_LEAST_VARIATION = 0.05
_LONG_WAIT = 0.5
"""Prefill wait that makes new long prompts late, as a share of the first-token target."""


@dataclass(frozen=True)
class FleetNeed:
    """Number of nodes needed, by role. Pure.

    now: nodes needed to meet the targets now, and until another could start. keep: nodes to keep
    when others are taken away. feasible: True if some number of nodes meets the targets.
    """

    now: dict[NodeRole, int]
    keep: dict[NodeRole, int]
    feasible: dict[NodeRole, bool]


def need_of(history: Sequence[Observation], policy: PlanPolicy) -> FleetNeed:
    """Return the number of nodes needed. history: at least one observation, within the policy's
    window."""
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
    # Late work must be done beside new work.
    behind = min(most, math.ceil(trend.now + late / pace.clear)) if late else 0
    feasible = service is None or prefill_feasible(service, targets)
    now = max(prefill_nodes(trend.soon, service, targets, most), behind)
    keep = prefill_nodes(trend.settled * (1 + pace.room), service, targets, most)
    return now, max(now, keep), feasible


def _late_work(history: Sequence[Observation], policy: PlanPolicy) -> float:
    """Return the waiting seconds of prefill if the wait makes new prompts late; otherwise 0."""
    times = np.array([each.at for each in history])
    backlog = np.array([each.prefill.backlog for each in history])
    waiting = level_of(times, backlog, policy.pace.quick)
    ready = max(1, history[-1].nodes[NodeRole.PREFILL].ready)
    return waiting if waiting > _LONG_WAIT * policy.targets.first_token * ready else 0.0


def _service(history: Sequence[Observation]) -> ServiceTimes | None:
    """Return the distribution of prefill times, each observation weighted by its prompts; None if
    no prompt ended."""
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
    # These nodes must also take the prompts from prefill's backlog, beside new ones.
    work = level_of(times, np.array([each.prefill.work for each in history]), pace.quick)
    passed_on = 1 + _late_work(history, policy) / (pace.clear * work) if work > 0 else 1.0
    soon = max(tokens.soon, tokens.now * passed_on)
    now = decode_nodes(DecodeLoad(soon, answers.now, held), line, targets, most)
    more = 1 + pace.room
    settled = DecodeLoad(tokens.settled * more, answers.settled * more, held)
    keep = decode_nodes(settled, line, targets, most)
    return now, max(now, keep), line is None or decode_feasible(line, targets)


_FULL_SHARE = 0.95
"""Share of the window enough to count as full, because observations come a little late."""


@dataclass(frozen=True)
class Place:
    """Action: start new nodes of a role."""

    role: NodeRole
    nodes: int


@dataclass(frozen=True)
class ChangeRole:
    """Action: change ready nodes of the other role to this role."""

    role: NodeRole
    nodes: int


@dataclass(frozen=True)
class Drain:
    """Action: end one node of a role, after its requests have ended."""

    role: NodeRole


Action = Place | ChangeRole | Drain


@dataclass(frozen=True)
class FleetPlan:
    """Plan for a fleet. actions: actions to take now, in order. held_back: reason for leaving a
    role short; empty if none is."""

    need: FleetNeed
    actions: tuple[Action, ...]
    held_back: str = ""


def plan(history: Sequence[Observation], policy: PlanPolicy) -> FleetPlan:
    """Return the plan. history: at least one observation, in order of time; those before the
    policy's window are skipped."""
    end = history[-1].at
    recent = [each for each in history if each.at > end - policy.pace.window]
    nodes, need = recent[-1].nodes, need_of(recent, policy)
    full = len(history) > 1 and end - history[0].at >= _FULL_SHARE * policy.pace.window
    spare = {role: max(0, nodes[role].all - need.keep[role]) for role in NodeRole}
    for role in NodeRole:
        if not full or _changed(history, policy.pace.settle, role, more=True):
            spare[role] = 0
    total = sum(count.all for count in nodes.values())
    actions: list[Action] = []
    held_back = ""
    for role in NodeRole:
        short = need.now[role] - nodes[role].all
        if short <= 0:
            continue
        changed = min(short, spare[role.other], nodes[role.other].ready)
        if changed:
            spare[role.other] -= changed
            actions.append(ChangeRole(role, changed))
        room = policy.bounds.most - total - _placed(actions)
        if placed := min(short - changed, max(0, room)):
            actions.append(Place(role, placed))
        if placed + changed < short:
            held_back = f"{role} needs {short - changed - placed} more than the most of all allows"
    leaving = _leaving(nodes, spare)
    rests = not any(_changed(history, policy.pace.cool_down, role, more=False) for role in NodeRole)
    may = not actions and not held_back and total > policy.bounds.least
    if leaving is not None and rests and may:
        actions.append(Drain(leaving))
    return FleetPlan(need, tuple(actions), held_back)


def _placed(actions: Sequence[Action]) -> int:
    return sum(each.nodes for each in actions if isinstance(each, Place))


def _leaving(nodes: dict[NodeRole, NodeCount], spare: dict[NodeRole, int]) -> NodeRole | None:
    """Return the role to take a node from: with the largest spare share, and a ready node; None if
    there is none."""
    able = [role for role in NodeRole if spare[role] and nodes[role].ready]
    return max(able, key=lambda role: spare[role] / nodes[role].all, default=None)


def _changed(history: Sequence[Observation], seconds: float, role: NodeRole, *, more: bool) -> bool:
    """Return True if the role's node count grew in the last `seconds`; with more=False, if it
    shrank."""
    since = history[-1].at - seconds
    for later, earlier in pairwise(reversed(history)):
        if later.at <= since:
            return False
        gained = later.nodes[role].all - earlier.nodes[role].all
        if gained > 0 if more else gained < 0:
            return True
    return False
