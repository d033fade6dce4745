"""Nodes on a Ray cluster, as many as a planner wants: `tasuki ray --plan`.

Each node is an actor of its own, outside of any placement group, so that one that finds no room
waits, and Ray's autoscaler adds a machine for it. Owns the actors. One event loop's thread.
Invariant: Ray is asked for the resources of all nodes that stand or come, and no more.
"""

import asyncio
import json
import signal
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import suppress
from typing import Any

import ray
from ray.autoscaler.sdk import request_resources

from tasuki.cli.fleet.node_poll import NodePoll
from tasuki.cli.fleet.poll_settings import Credentials
from tasuki.cli.planner.cluster import ClusterNode
from tasuki.cli.planner.fleet_observer import FleetObserver
from tasuki.cli.planner.node_access import NodeAccess
from tasuki.cli.planner.node_figures import PLANNED_BY
from tasuki.cli.planner.placed_nodes import PlacedNodes
from tasuki.cli.planner.plan_loop import PlanLoop
from tasuki.cli.planner.planner_config import PlannerConfig
from tasuki.routing.planner.observation import NodeRole

from .actor import RayNode
from .config import RayConfig


class _ActorHandle:
    def __init__(self, actor: Any) -> None:
        self._actor = actor

    def ask(self, method: str, *arguments: Any) -> "Future[Any]":
        asked: Future[Any] = getattr(self._actor, method).remote(*arguments).future()
        return asked

    def end(self) -> None:
        ray.kill(self._actor)


class RayNodes:
    """A Cluster. REQUIRES: ray.init was called."""

    def __init__(self, config: RayConfig, flags: Sequence[str], access: NodeAccess) -> None:
        self._config, self._flags, self._access = config, list(flags), access
        self._placed = PlacedNodes(self._start)
        self._asked_for = 0

    def nodes(self) -> Sequence[ClusterNode]:
        nodes = self._placed.nodes()
        if len(nodes) != self._asked_for:
            self._asked_for = len(nodes)
            request_resources(bundles=[self._bundle] * len(nodes))
        return nodes

    def place(self, role: NodeRole) -> None:
        self._placed.place(role)

    def drain(self, name: str) -> None:
        self._placed.drain(name)

    def change_role(self, name: str, role: NodeRole) -> None:
        self._placed.change_role(name, role)

    def drain_all(self, seconds: float) -> None:
        self._placed.drain_all(seconds)

    def end(self) -> None:
        request_resources(bundles=[])
        self._placed.end()

    @property
    def _bundle(self) -> dict[str, float]:
        config = self._config
        return {"CPU": config.cpus, **({"GPU": config.gpus} if config.gpus else {})}

    def _start(self, role: NodeRole, name: str) -> _ActorHandle:
        config = self._config
        actor = ray.remote(RayNode).options(
            num_cpus=config.cpus,
            num_gpus=config.gpus,
            max_restarts=-1,
            scheduling_strategy="SPREAD",
        )
        return _ActorHandle(
            actor.remote(
                *(role.value, name, self._flags, config.host, self._access), gpus=config.gpus
            )
        )


def supervise(config: RayConfig, planner: PlannerConfig, flags: Sequence[str]) -> None:
    """Until Ctrl-C or SIGTERM, which drains. Prints what is done about nodes, and the nodes'
    addresses whenever they are others, a line of JSON each. Raises PlannerConfigError."""
    credentials = planner.credentials("--insecure" in flags)
    ray.init(address=config.address)
    cluster = RayNodes(config, flags, planner.access)
    try:
        for role, nodes in ((NodeRole.PREFILL, config.prefill), (NodeRole.DECODE, config.decode)):
            for _ in range(nodes):
                cluster.place(role)
        asyncio.run(_run(cluster, planner, credentials))
    finally:
        cluster.end()


async def _run(cluster: RayNodes, planner: PlannerConfig, credentials: Credentials) -> None:
    loop, stop = asyncio.get_running_loop(), asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    observer = FleetObserver(planner.warm_seconds)
    async with NodePoll(observer, credentials, planner.limits, PLANNED_BY) as poll:
        plans = PlanLoop(cluster, observer, poll, planner.policy, planner.plan_seconds, _show)
        working = asyncio.create_task(plans.run())
        await stop.wait()
        working.cancel()
        with suppress(asyncio.CancelledError):
            await working
    await asyncio.to_thread(cluster.drain_all, planner.drain_seconds)


def _show(what: dict[str, Any]) -> None:
    print(json.dumps(what), flush=True)
