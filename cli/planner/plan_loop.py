"""The loop of a planner: it observes the nodes' /metrics, plans and acts, repeatedly.

NodeFigures: the work of one node between two reads of its /metrics. Pure.

FleetObserver owns the last answers of each node. Invariants: rates never span a node's restart. A
node ready for less than `warm` seconds adds neither step times nor prompt times. A node without
answers is not counted as idle: the figures of answering nodes are scaled up to the whole fleet.

PlanLoop owns the observations and no other state: it reads the cluster's nodes each time. So a
restarted loop removes no node before it has observed a whole window. Used on one event loop's
thread.
"""

import asyncio
import logging
import math
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from tasuki.cli.fleet.node_poll import NodePoll
from tasuki.dashboard.fleet.samples import Buckets, Samples, buckets_of, by_label, difference, one
from tasuki.engine.messages.requests import RequestPhase
from tasuki.routing.planner.fleet_plan import Action, ChangeRole, Drain, FleetPlan, Place, plan
from tasuki.routing.planner.observation import (
    DecodeObserved,
    NodeCount,
    NodeRole,
    Observation,
    PrefillObserved,
)
from tasuki.routing.planner.policy import PlanPolicy

from .cluster import Cluster, ClusterNode, NodePhase

_STEP = "tasuki_engine_step_seconds"
_ROOM = "tasuki_room_prefill_seconds"
_WAIT = "tasuki_prefill_node_wait_seconds"
_STARTED = "tasuki_node_start_time_seconds"
_GENERATED = "tasuki_generated_tokens_total"
_REQUESTS = "tasuki_requests"
_POOLS = ("tasuki_cache_pages", "tasuki_cache_slots")

PLANNED_BY = frozenset(
    {
        *(f"{name}_{part}" for name in (_STEP, _ROOM) for part in ("sum", "count")),
        f"{_ROOM}_bucket",
        *(_WAIT, _STARTED, _GENERATED, _REQUESTS, *_POOLS),
    }
)
"""Names of the /metrics samples used for NodeFigures."""

_HELD = ("working", "pinned", "in_transfer")
_MEMORY = (RequestPhase.WAITING.value, RequestPhase.RETRACTED.value)
_MOST_VARIATION = 50.0


@dataclass(frozen=True)
class NodeFigures:
    """The work of one node between two reads of its /metrics. seconds: time between the reads.
    busy: seconds of forwards. steps: number of forwards. transfers: number of prompts computed for
    other nodes. variation: variance of these prompts' times over the square of their mean. tokens:
    tokens returned to callers. running: answers being decoded. waiting: requests without memory.
    held: share of the node's memory unavailable to further requests. waits: remaining seconds of
    prefill, by prefill node's name."""

    seconds: float
    busy: float
    steps: float
    transfers: float
    variation: float
    tokens: float
    running: float
    waiting: float
    held: float
    waits: dict[str, float]


def figures(earlier: Samples, later: Samples, seconds: float) -> NodeFigures | None:
    """Return the node's figures between two reads of /metrics, or None if it restarted between
    them. seconds: time between the reads, over 0."""
    if one(earlier, _STARTED) != one(later, _STARTED):
        return None
    gained = difference(later, earlier)
    states = by_label(later, _REQUESTS, "state")
    return NodeFigures(
        seconds=seconds,
        busy=_gained(gained, f"{_STEP}_sum"),
        steps=_gained(gained, f"{_STEP}_count"),
        transfers=_gained(gained, f"{_ROOM}_count"),
        variation=_variation(buckets_of(gained, _ROOM)),
        tokens=_gained(gained, _GENERATED),
        running=states.get(RequestPhase.DECODING.value, 0.0),
        waiting=sum(states.get(state, 0.0) for state in _MEMORY),
        held=max(_held(by_label(later, pool, "owner")) for pool in _POOLS),
        waits={name: max(0.0, wait) for name, wait in by_label(later, _WAIT, "peer").items()},
    )


def _gained(gained: Samples, name: str) -> float:
    return max(0.0, one(gained, name) or 0.0)


def _held(owners: dict[str, float]) -> float:
    total = sum(owners.values())
    return sum(owners.get(owner, 0.0) for owner in _HELD) / total if total > 0 else 0.0


def _variation(buckets: Buckets) -> float:
    """Return the variance over the squared mean of a histogram, at most _MOST_VARIATION. Each
    observation counts as the middle of its bucket. Returns 1 without observations."""
    low = below = many = sums = squares = 0.0
    for bound, count in buckets.items():
        here = max(0.0, count - below)
        value = low if bound == float("inf") else (low + bound) / 2
        many, sums, squares = many + here, sums + here * value, squares + here * value * value
        low, below = min(bound, 1e9), max(below, count)
    if many <= 0 or sums <= 0:
        return 1.0
    return min(_MOST_VARIATION, max(0.0, squares * many / sums**2 - 1))


class NodesUnseen(Exception):
    """No node of some role has answered twice, so the role's demand is unknown."""


class FleetObserver:
    def __init__(self, warm: float) -> None:
        """Set up the observer. warm: seconds a node must be ready before its times count."""
        self._warm = warm
        self._latest: dict[str, tuple[float, Samples]] = {}
        self._before: dict[str, tuple[float, Samples]] = {}
        """Samples at the previous observation, by the node's HTTP address."""
        self._ready_since: dict[tuple[str, NodeRole], float] = {}
        self._figures: dict[str, NodeFigures] = {}
        self._backlog = 0.0
        self._observed_at = -math.inf

    def set_members(self, addresses: Iterable[str]) -> None:
        kept = set(addresses)
        for known in (self._latest, self._before):
            for address in [each for each in known if each not in kept]:
                del known[address]

    def answered(self, address: str, now: float, clock: float, samples: Samples) -> None:
        self._latest[address] = clock, samples

    def failed(self, address: str, now: float, reason: str) -> None:
        self._latest.pop(address, None)
        self._before.pop(address, None)

    def least_busy(self, nodes: Sequence[ClusterNode]) -> list[ClusterNode]:
        """Return the nodes by load, least or unknown first: by current requests, then by recent
        busy time."""

        def load(node: ClusterNode) -> tuple[float, float]:
            known = self._figures.get(node.http)
            return (known.running + known.waiting, known.busy) if known is not None else (0.0, 0.0)

        return sorted(nodes, key=load)

    def observe(self, nodes: Sequence[ClusterNode], now: float) -> Observation:
        """Return an observation of the nodes since the previous call. now: monotonic seconds, later
        than at that call. Raises NodesUnseen."""
        counts = {role: _count(nodes, role) for role in NodeRole}
        ready = [node for node in nodes if node.phase is NodePhase.READY]
        standing = {(node.name, node.role) for node in ready}
        self._ready_since = {
            key: self._ready_since.get(key, now) for key in sorted(standing, key=str)
        }
        self._figures = self._take()
        seen = {
            role: [
                (node, self._figures[node.http])
                for node in ready
                if node.role is role and node.http in self._figures
            ]
            for role in NodeRole
        }
        missing = [role for role in NodeRole if not seen[role]]
        if missing:
            raise NodesUnseen(f"no {missing[0]} node has answered twice at /metrics")
        prefill = self._prefill(seen[NodeRole.PREFILL], seen[NodeRole.DECODE], counts, now)
        decode = self._decode(seen[NodeRole.DECODE], counts, now)
        return Observation(now, counts, prefill, decode)

    def _take(self) -> dict[str, NodeFigures]:
        found = {}
        for address, (at, samples) in self._latest.items():
            before = self._before.get(address)
            if before is not None and at > before[0]:
                made = figures(before[1], samples, at - before[0])
                if made is not None:
                    found[address] = made
            if before is None or at > before[0]:
                self._before[address] = at, samples
        return found

    def _is_warm(self, node: ClusterNode, now: float) -> bool:
        return now - self._ready_since[node.name, node.role] >= self._warm

    def _prefill(
        self,
        seen: Sequence[tuple[ClusterNode, NodeFigures]],
        deciders: Sequence[tuple[ClusterNode, NodeFigures]],
        counts: dict[NodeRole, NodeCount],
        now: float,
    ) -> PrefillObserved:
        made_up = counts[NodeRole.PREFILL].ready / len(seen)
        busy = sum(each.busy / each.seconds for _, each in seen) * made_up
        names = {node.name for node, _ in seen}
        backlog = made_up * sum(
            max((each.waits.get(name, 0.0) for _, each in deciders), default=0.0) for name in names
        )
        since = now - self._observed_at
        more = (backlog - self._backlog) / since if math.isfinite(since) and since > 0 else 0.0
        self._backlog, self._observed_at = backlog, now
        warm = [each for node, each in seen if self._is_warm(node, now) and each.transfers > 0]
        transfers = sum(each.transfers for each in warm)
        mean = sum(each.busy for each in warm) / transfers if transfers else 0.0
        variation = (
            sum(each.variation * each.transfers for each in warm) / transfers if transfers else 0.0
        )
        # New work = work done + growth of the backlog.
        work = max(0.0, busy + more)
        return PrefillObserved(work, mean, mean * mean * (1 + variation), backlog)

    def _decode(
        self,
        seen: Sequence[tuple[ClusterNode, NodeFigures]],
        counts: dict[NodeRole, NodeCount],
        now: float,
    ) -> DecodeObserved:
        made_up = counts[NodeRole.DECODE].ready / len(seen)
        running = sum(each.running for _, each in seen)
        warm = [e for node, e in seen if self._is_warm(node, now) and e.steps > 0 and e.tokens > 0]
        steps = sum(each.steps for each in warm)
        return DecodeObserved(
            tokens=made_up * sum(each.tokens / each.seconds for _, each in seen),
            running=made_up * running,
            waiting=made_up * sum(each.waiting for _, each in seen),
            step=sum(each.busy for each in warm) / steps if steps else 0.0,
            batch=sum(each.tokens for each in warm) / steps if steps else 0.0,
            held=sum(each.held for _, each in seen) / running if running else 0.0,
        )


def _count(nodes: Sequence[ClusterNode], role: NodeRole) -> NodeCount:
    phases = [node.phase for node in nodes if node.role is role]
    return NodeCount(phases.count(NodePhase.READY), phases.count(NodePhase.COMING))


log = logging.getLogger(__name__)


class PlanLoop:
    def __init__(
        self,
        cluster: Cluster,
        observer: FleetObserver,
        poll: NodePoll,
        policy: PlanPolicy,
        seconds: float,
        show: Callable[[dict[str, Any]], None],
    ) -> None:
        """Set up a loop. poll: poller feeding the observer. seconds: time between two plans. show:
        called with each action taken."""
        self._cluster = cluster
        self._observer = observer
        self._poll = poll
        self._policy = policy
        self._seconds = seconds
        self._show = show
        self._addresses: dict[str, str] = {}
        self._history: deque[Observation] = deque(maxlen=round(policy.pace.window / seconds) + 2)

    async def run(self) -> None:
        """Plan until cancelled, despite errors."""
        while True:
            try:
                await self.step()
            except Exception:
                # Nodes continue as they are. The observations may have caused the error, so drop
                # them.
                log.exception("the planner begins anew")
                self._history.clear()
            await asyncio.sleep(self._seconds)

    async def step(self) -> FleetPlan | None:
        """Make one plan, act on it and return it. Returns None while too few observations exist."""
        nodes = await asyncio.to_thread(self._cluster.nodes)
        await self._poll.ask_these(
            node.http for node in nodes if node.http and node.phase is NodePhase.READY
        )
        now = time.monotonic()
        self._place_what_is_least(nodes)
        addresses = {node.name: node.address for node in nodes if node.phase is NodePhase.READY}
        if addresses != self._addresses:
            self._addresses = addresses
            self._show({"nodes": addresses})
        try:
            self._history.append(self._observer.observe(nodes, now))
        except NodesUnseen as error:
            log.info("nothing is planned: %s", error)
            return None
        made = plan(list(self._history), self._policy)
        for action in made.actions:
            done = self._act(action, nodes)
            needs = {role.value: need for role, need in made.need.now.items()}
            self._show({**done, "needed": needs})
        if made.held_back:
            log.warning("%s", made.held_back)
        return made

    def _place_what_is_least(self, nodes: Sequence[ClusterNode]) -> None:
        """Place the minimum number of nodes of each role without any node: at start, or after
        losing all its nodes. Such a role has no node to observe."""
        bounds = self._policy.bounds
        for role, least in ((NodeRole.PREFILL, bounds.prefill), (NodeRole.DECODE, bounds.decode)):
            there = [n for n in nodes if n.role is role and n.phase is not NodePhase.LEAVING]
            if not there and len(nodes) < bounds.most:
                for _ in range(least):
                    self._cluster.place(role)

    def _act(self, action: Action, nodes: Sequence[ClusterNode]) -> dict[str, Any]:
        match action:
            case Place(role, many):
                for _ in range(many):
                    self._cluster.place(role)
                return {"placed": role.value, "nodes": many}
            case ChangeRole(role, many):
                names = self._idlest(nodes, role.other)[:many]
                for name in names:
                    self._cluster.change_role(name, role)
                return {"changed_to": role.value, "nodes": names}
            case Drain(role):
                name = self._idlest(nodes, role)[0]
                self._cluster.drain(name)
                return {"drained": role.value, "nodes": [name]}

    def _idlest(self, nodes: Sequence[ClusterNode], role: NodeRole) -> list[str]:
        ready = [n for n in nodes if n.role is role and n.phase is NodePhase.READY]
        return [node.name for node in self._observer.least_busy(ready)]
