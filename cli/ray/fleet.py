"""Nodes on the machines of a Ray cluster: a fixed number, or a number set by a planner.

`tasuki ray` runs a fixed number of prefill and decode nodes. Ray places, starts and restarts nodes;
tokens and cache travel between nodes directly, as in every deployment. Owns one actor a node and
their placement group. Used by one thread. Invariant: decode nodes get every prefill node's address
once it is ready, and again after it has moved.

`tasuki ray --plan` runs the number of nodes set by a planner. Each node is an actor of its own,
outside of any placement group. So a node without free resources waits, and Ray's autoscaler adds a
machine for it. Owns the actors. Used on one event loop's thread. Invariant: Ray is asked for the
resources of all ready and coming nodes, and no more.
"""

import asyncio
import json
import signal
import time
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, Self

import ray
from ray.autoscaler.sdk import request_resources
from ray.exceptions import GetTimeoutError, RayActorError, RayTaskError
from ray.util.placement_group import placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from tasuki.cli.fleet.config import Credentials
from tasuki.cli.fleet.node_poll import NodePoll
from tasuki.cli.planner.cluster import ClusterNode, PlacedNodes
from tasuki.cli.planner.config import NodeAccess, PlannerConfig
from tasuki.cli.planner.plan_loop import PLANNED_BY, FleetObserver, PlanLoop
from tasuki.routing.planner.observation import NodeRole

from .actor import RayNode
from .config import RayConfig

_ANSWER_SECONDS = 2.0
_FIRST_SECONDS = 180.0


class RayFleet:
    """A fleet with a fixed number of nodes, for a `with` block. Call look() repeatedly. REQUIRES:
    ray.init was called."""

    def __init__(self, config: RayConfig, flags: Sequence[str]) -> None:
        """Place the nodes. flags: flags common to all daemons. Blocks until the cluster has
        resources for all nodes."""
        self._config = config
        roles = ["prefill"] * config.prefill + ["decode"] * config.decode
        bundles = [_bundle(config, role) for role in roles]
        self._group = placement_group(bundles, strategy=config.strategy)
        ray.get(self._group.ready())
        self.nodes: dict[str, Any] = {}
        self.addresses: dict[str, str] = {}
        """HOST:PORT of each node ready at the last look(), by the node's name."""
        for index, role in enumerate(roles):
            name = f"{role}-{index if role == 'prefill' else index - config.prefill}"
            actor = ray.remote(RayNode).options(
                num_cpus=config.cpus,
                num_gpus=config.gpus_of(role),
                max_restarts=-1,
                scheduling_strategy=PlacementGroupSchedulingStrategy(self._group, index),
            )
            own = config.flags_of(role, flags)
            gpus = config.gpus_of(role)
            self.nodes[name] = actor.remote(role, name, own, config.host, gpus=gpus)

    def look(self, patience: float = _ANSWER_SECONDS) -> dict[str, str]:
        """Get every node's address, and send the prefill nodes' addresses to the decode nodes.
        Getting an address also restarts a dead daemon. patience: timeout in seconds for all nodes
        together. Return HOST:PORT by the node's name; a node without an answer is left out."""
        asked = {name: node.address.remote() for name, node in self.nodes.items()}
        ray.wait([*asked.values()], num_returns=len(asked), timeout=patience)
        self.addresses = {
            name: address for name, call in asked.items() if (address := _answered(call))
        }
        prefill = tuple(
            address for name, address in self.addresses.items() if name.startswith("prefill-")
        )
        for name, node in self.nodes.items():
            if name.startswith("decode-"):
                # Send them even without a change: a restarted decode node has no addresses.
                node.follow.remote(prefill)
        return self.addresses

    def wait_ready(self, seconds: float = _FIRST_SECONDS) -> dict[str, str]:
        """Wait until all nodes are ready, and return their addresses by name. Raises TimeoutError
        after `seconds`, naming the nodes without an answer."""
        deadline = time.monotonic() + seconds
        while len(self.look()) < len(self.nodes):
            if time.monotonic() > deadline:
                missing = sorted(self.nodes.keys() - self.addresses.keys())
                raise TimeoutError(f"not ready within {seconds:.0f} s: {', '.join(missing)}")
        return self.addresses

    def drain(self, timeout: float = 60.0) -> None:
        """Drain all nodes, decode nodes first, because they still need the prefill nodes. timeout:
        seconds for each role."""
        for role in ("decode-", "prefill-"):
            calls = [
                node.drain.remote(timeout)
                for name, node in self.nodes.items()
                if name.startswith(role)
            ]
            ray.wait(calls, num_returns=len(calls), timeout=timeout + _ANSWER_SECONDS)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for node in self.nodes.values():
            ray.kill(node)
        remove_placement_group(self._group)


def _bundle(config: RayConfig, role: str) -> dict[str, float]:
    """Return the resources of one node of this role. A bundle lies on one machine, so a node does
    too."""
    gpus = config.gpus_of(role)
    return {"CPU": config.cpus, **({"GPU": gpus} if gpus else {})}


def _answered(call: Any) -> str | None:
    """Return the result of a Ray call, or None if the actor is restarting or its daemon does not
    start."""
    try:
        return str(ray.get(call, timeout=0))
    except (GetTimeoutError, RayActorError, RayTaskError):
        return None


def supervise(config: RayConfig, flags: Sequence[str]) -> None:
    """Run the fleet until Ctrl-C, then drain it. Prints the nodes' addresses as one line of JSON,
    and again after each change of an address."""
    ray.init(address=config.address)
    with RayFleet(config, flags) as fleet:
        try:
            print(json.dumps({"ready": fleet.wait_ready()}), flush=True)
            known = fleet.addresses
            while True:
                time.sleep(config.poll_seconds)
                if fleet.look() != known:
                    known = fleet.addresses
                    print(json.dumps({"nodes": known}), flush=True)
        except KeyboardInterrupt:
            fleet.drain()


class _ActorHandle:
    def __init__(self, actor: Any) -> None:
        self._actor = actor

    def ask(self, method: str, *arguments: Any) -> "Future[Any]":
        asked: Future[Any] = getattr(self._actor, method).remote(*arguments).future()
        return asked

    def end(self) -> None:
        ray.kill(self._actor)


class RayNodes:
    """A Cluster of nodes under Ray, each an actor of its own. REQUIRES: ray.init was called."""

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


def supervise_planned(config: RayConfig, planner: PlannerConfig, flags: Sequence[str]) -> None:
    """Run the planned fleet until Ctrl-C or SIGTERM, then drain it. Prints each action on nodes,
    and the nodes' addresses after each change, one line of JSON each. Raises PlannerConfigError."""
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
