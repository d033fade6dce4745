"""What is to be done about a fleet's nodes: a pure function of what was lately observed.

States of a fleet, as a plan sees it:
  short     a role has fewer nodes than it needs: spare ones of the other role change theirs, the
            rest is placed
  spare     a role has more than it needs with room to spare, and has had for `settle`: one goes
            each `cool_down`, and none while the other role is short
  at rest   neither

Invariants: the same observations give the same plan, so that a planner which starts anew loses
nothing; nothing is taken away before the window is full; a role that would be short afterwards
gives no node away; at most `most` nodes are ready or coming.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from .node_need import FleetNeed, need_of
from .observation import NodeCount, NodeRole, Observation
from .policy import PlanPolicy

_FULL_SHARE = 0.95
"""Of the window: observations come a little late."""


@dataclass(frozen=True)
class Place:
    """Start so many nodes."""

    role: NodeRole
    nodes: int


@dataclass(frozen=True)
class ChangeRole:
    """So many nodes that are ready in the other role take this one."""

    role: NodeRole
    nodes: int


@dataclass(frozen=True)
class Drain:
    """One node ends once its requests have."""

    role: NodeRole


Action = Place | ChangeRole | Drain


@dataclass(frozen=True)
class FleetPlan:
    """actions: to do now, in order. held_back: why nothing is done about a role that is short."""

    need: FleetNeed
    actions: tuple[Action, ...]
    held_back: str = ""


def plan(history: Sequence[Observation], policy: PlanPolicy) -> FleetPlan:
    """history: in order of time, at least one; what is older than the window is passed over."""
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
    """The role with the larger spare part, of those that have a ready node to give."""
    able = [role for role in NodeRole if spare[role] and nodes[role].ready]
    return max(able, key=lambda role: spare[role] / nodes[role].all, default=None)


def _changed(history: Sequence[Observation], seconds: float, role: NodeRole, *, more: bool) -> bool:
    """Whether the role got more nodes, or fewer, in the last seconds."""
    since = history[-1].at - seconds
    for later, earlier in pairwise(reversed(history)):
        if later.at <= since:
            return False
        gained = later.nodes[role].all - earlier.nodes[role].all
        if gained > 0 if more else gained < 0:
            return True
    return False
