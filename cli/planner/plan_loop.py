"""Observes, plans and acts, again and again.

Owns the observations, and nothing else that matters: what stands is asked of the cluster each time,
so that a loop which begins anew, or has forgotten after an error, takes nothing away until it has
observed a whole window. One event loop's thread.
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from tasuki.cli.fleet.node_poll import NodePoll
from tasuki.routing.planner.fleet_plan import Action, ChangeRole, Drain, FleetPlan, Place, plan
from tasuki.routing.planner.observation import NodeRole, Observation
from tasuki.routing.planner.policy import PlanPolicy

from .cluster import Cluster, ClusterNode, NodePhase
from .fleet_observer import FleetObserver, NodesUnseen

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
        """poll: feeds the observer. seconds: between two plans. show: takes what was done."""
        self._cluster = cluster
        self._observer = observer
        self._poll = poll
        self._policy = policy
        self._seconds = seconds
        self._show = show
        self._addresses: dict[str, str] = {}
        self._history: deque[Observation] = deque(maxlen=round(policy.pace.window / seconds) + 2)

    async def run(self) -> None:
        """Until it is cancelled."""
        while True:
            try:
                await self.step()
            except Exception:
                # Nodes go on as they are; what was observed may be what broke it.
                log.exception("the planner begins anew")
                self._history.clear()
            await asyncio.sleep(self._seconds)

    async def step(self) -> FleetPlan | None:
        """One plan, acted upon; None while too little is known."""
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
        """Of a fleet that begins, or has lost all nodes of a role: nothing could be observed."""
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
