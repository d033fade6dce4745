"""A day on a fleet whose nodes take time to start, to drain and to change their roles.

Owns the clock, the nodes and what is counted. A request is lost by nothing: a node that leaves ends
what it has. Virtual time, seconds. Thread rule: one thread. Deterministic.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import numpy as np

from tasuki.routing.planner.fleet_plan import Action, ChangeRole, Drain, Place
from tasuki.routing.planner.observation import (
    DecodeObserved,
    NodeCount,
    NodeRole,
    Observation,
    PrefillObserved,
)

from .day import Day
from .pools import DecodePool, DecodeSpeed, Ended, Joining, PrefillPool

TICK_SECONDS = 1.0
OBSERVED_SECONDS = 5.0
_WARM_SECONDS = 30.0


@dataclass(frozen=True)
class NodeTimes:
    """start: seconds from the order of a node until it takes requests, between these two; change:
    the same from the end of its drain to the other role."""

    start: tuple[float, float] = (60.0, 120.0)
    change: tuple[float, float] = (15.0, 30.0)


@dataclass
class DayCounts:
    """first_token: by request, seconds. per_token: seconds a token. node_seconds: from a node's
    order to its end. added: when which role got more (or fewer) nodes, by what was decided."""

    first_token: np.ndarray
    per_token: np.ndarray
    node_seconds: float = 0.0
    added: list[tuple[float, NodeRole, int]] = field(default_factory=list)
    nodes: list[tuple[float, int, int]] = field(default_factory=list)
    changes: int = 0


Control = Callable[[Observation], tuple[Action, ...]]


class SimulatedFleet:
    def __init__(
        self, day: Day, speed: DecodeSpeed, times: NodeTimes, first: dict[NodeRole, int], seed: int
    ) -> None:
        """first: nodes that are ready at the begin."""
        self._day = day
        self._times = times
        self._random = np.random.default_rng(seed)
        self._prefill, self._decode = PrefillPool(), DecodePool(speed)
        self._pools: dict[NodeRole, PrefillPool | DecodePool] = {
            NodeRole.PREFILL: self._prefill,
            NodeRole.DECODE: self._decode,
        }
        self._unfinished = 0
        self._coming: list[tuple[float, int, NodeRole]] = []
        self._changing: dict[int, NodeRole] = {}
        """Nodes that leave their role for another."""
        self._ordered: dict[int, float] = {}
        self._made = 0
        self._joining: dict[int, list[Joining]] = defaultdict(list)
        self._answer, self._context = day.answer.tolist(), day.context.tolist()
        self._answers = day.answer[:100].mean() if len(day.answer) else 1.0
        many = len(day.came)
        self._counts = DayCounts(np.full(many, np.inf), np.full(many, np.inf))
        for role, nodes in first.items():
            for _ in range(nodes):
                self._ready(self._order(0.0), role, 0.0)

    def run(self, control: Control) -> DayCounts:
        """To the end of the day, and until its last answer has ended."""
        day, now, next_look, index = self._day, 0.0, OBSERVED_SECONDS, 0
        self._unfinished = len(day.came)
        came, many = day.came.tolist(), len(day.came)
        work = day.prefill.tolist()
        seen_from, tick = 0, 0
        while self._unfinished:
            until = now + TICK_SECONDS
            self._leave_and_come(now)
            while index < many and came[index] < until:
                # REQUIRES of the pool: the planner keeps at least one prefill node ready.
                self._computed(self._prefill.serve(came[index], work[index], index))
                index += 1
            self._computed(self._prefill.advance(until))
            for over in self._decode.tick(now, TICK_SECONDS, self._joining.pop(tick, ())):
                self._end(over)
            tick += 1
            now = tick * TICK_SECONDS
            if now >= next_look:
                self._look(now, seen_from, index, control)
                seen_from, next_look = index, next_look + OBSERVED_SECONDS
        for ordered in self._ordered.values():
            self._counts.node_seconds += now - ordered
        return self._counts

    def _computed(self, ended: Iterable[tuple[float, int]]) -> None:
        for at, index in ended:
            joins = Joining(at, index, self._answer[index], self._context[index])
            self._joining[int(at / TICK_SECONDS)].append(joins)

    def place(self, role: NodeRole, now: float, *, ready: bool = False) -> None:
        """ready: at once; it counts as if it had been ordered in time."""
        low, high = self._times.start
        if ready:
            self._ready(self._order(now - (low + high) / 2), role, now)
        else:
            self._coming.append((now + self._random.uniform(low, high), self._order(now), role))

    def drain(self, role: NodeRole, now: float) -> None:
        self._pools[role].leave()

    def change(self, role: NodeRole, now: float) -> None:
        """A node of the other role takes this one."""
        self._counts.changes += 1
        self._changing[self._pools[role.other].leave()] = role

    def ready(self, role: NodeRole) -> int:
        return self._pools[role].nodes

    def _look(self, now: float, first: int, last: int, control: Control) -> None:
        nodes = self._nodes()
        counts = self._counts
        counts.nodes.append((now, nodes[NodeRole.PREFILL].all, nodes[NodeRole.DECODE].all))
        for action in control(self._observed(now, first, last, nodes)):
            match action:
                case Place(role, many):
                    for _ in range(many):
                        self.place(role, now)
                    counts.added.append((now, role, many))
                case ChangeRole(role, many):
                    for _ in range(many):
                        self.change(role, now)
                    counts.added += [(now, role, many), (now, role.other, -many)]
                case Drain(role):
                    self.drain(role, now)
                    counts.added.append((now, role, -1))

    def _nodes(self) -> dict[NodeRole, NodeCount]:
        coming = [role for _, _, role in self._coming] + list(self._changing.values())
        return {role: NodeCount(self.ready(role), coming.count(role)) for role in NodeRole}

    def _observed(
        self, now: float, first: int, last: int, nodes: dict[NodeRole, NodeCount]
    ) -> Observation:
        work = self._day.prefill[first:last]
        many = last - first
        batch, step = self._decode.steps(now, _WARM_SECONDS)
        return Observation(
            now,
            nodes,
            PrefillObserved(
                work=float(work.sum()) / OBSERVED_SECONDS,
                mean=float(work.mean()) if many else 0.0,
                square=float((work**2).mean()) if many else 0.0,
                backlog=self._prefill.backlog(now),
            ),
            DecodeObserved(
                tokens=many * self._answers / OBSERVED_SECONDS,
                running=self._decode.running,
                waiting=len(self._decode.waiting),
                step=step,
                batch=batch,
                held=self._decode.held,
            ),
        )

    def _leave_and_come(self, now: float) -> None:
        """Nodes become ready, or end, whose time has come."""
        for node in (*self._decode.left(), *self._prefill.left(now)):
            role = self._changing.pop(node, None)
            if role is None:
                self._gone(node, now)
            else:
                self._coming.append((now + self._random.uniform(*self._times.change), node, role))
        for at, node, role in [each for each in self._coming if each[0] <= now]:
            self._coming.remove((at, node, role))
            self._ready(node, role, now)

    def _ready(self, node: int, role: NodeRole, now: float) -> None:
        self._pools[role].add(node, now)

    def _order(self, now: float) -> int:
        self._made += 1
        self._ordered[self._made] = now
        return self._made

    def _gone(self, node: int, now: float) -> None:
        self._counts.node_seconds += now - self._ordered.pop(node)

    def _end(self, over: Ended) -> None:
        self._unfinished -= 1
        came = self._day.came[over.index]
        self._counts.first_token[over.index] = over.began - came
        self._counts.per_token[over.index] = (over.ended - over.began) / over.answer
        # Of answers that ended: how long one will be is not known when it begins.
        self._answers += 0.002 * (over.answer - self._answers)
