"""Makes observations of what nodes answer at /metrics.

Owns the last answers of each. One event loop's thread. Invariants: rates are of one life of a node;
of nodes that are ready for less than `warm` neither the times of steps nor those of prompts count;
a node that does not answer is not taken for one without work: the share of those that do answer is
made up for.
"""

import math
from collections.abc import Iterable, Sequence

from tasuki.dashboard.fleet.exposition_text import Samples
from tasuki.routing.planner.observation import (
    DecodeObserved,
    NodeCount,
    NodeRole,
    Observation,
    PrefillObserved,
)

from .cluster import ClusterNode, NodePhase
from .node_figures import NodeFigures, figures


class NodesUnseen(Exception):
    """No node of a role has answered twice: nothing is known of what is asked for."""


class FleetObserver:
    def __init__(self, warm: float) -> None:
        """warm: seconds."""
        self._warm = warm
        self._latest: dict[str, tuple[float, Samples]] = {}
        self._before: dict[str, tuple[float, Samples]] = {}
        """By the address of HTTP: as it stood at the last observation."""
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
        """The one with the least to lose first: of requests it has, then of what it did."""

        def load(node: ClusterNode) -> tuple[float, float]:
            known = self._figures.get(node.http)
            return (known.running + known.waiting, known.busy) if known is not None else (0.0, 0.0)

        return sorted(nodes, key=load)

    def observe(self, nodes: Sequence[ClusterNode], now: float) -> Observation:
        """now: monotonic seconds, later than at the last one. Raises NodesUnseen."""
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
        warm = [each for node, each in seen if self._is_warm(node, now) and each.rooms > 0]
        rooms = sum(each.rooms for each in warm)
        mean = sum(each.busy for each in warm) / rooms if rooms else 0.0
        variation = sum(each.variation * each.rooms for each in warm) / rooms if rooms else 0.0
        # What came is what was done and what is left more than before.
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
