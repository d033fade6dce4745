"""Prefill and decode nodes on the machines of a Ray cluster: `tasuki ray`.

Ray places, starts and restarts nodes; tokens and cache travel between nodes directly, as in every
deployment. Owns one actor a node and the placement group that they live in. One thread. Invariant:
decode nodes get every prefill node's address once it takes calls, and again when it has moved.
"""

import json
import time
from collections.abc import Sequence
from typing import Any, Self

import ray
from ray.exceptions import GetTimeoutError, RayActorError, RayTaskError
from ray.util.placement_group import placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from .actor import RayNode
from .config import RayConfig

_ANSWER_SECONDS = 2.0
_FIRST_SECONDS = 180.0


class RayFleet:
    """`with` it; then look() again and again. REQUIRES: ray.init was called."""

    def __init__(self, config: RayConfig, flags: Sequence[str]) -> None:
        """flags: of every daemon. Blocks until the cluster has room for all nodes."""
        self._config = config
        roles = ["prefill"] * config.prefill + ["decode"] * config.decode
        bundles = [_bundle(config, role) for role in roles]
        self._group = placement_group(bundles, strategy=config.strategy)
        ray.get(self._group.ready())
        self.nodes: dict[str, Any] = {}
        self.addresses: dict[str, str] = {}
        """Of the nodes that took calls when last asked, by name."""
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
        """Get every node's address, which also starts daemons that died, and give decode nodes the
        prefill nodes' addresses. patience: seconds for all of them together."""
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
                # Also where nothing changed: a restarted decode node has no addresses.
                node.follow.remote(prefill)
        return self.addresses

    def wait_ready(self, seconds: float = _FIRST_SECONDS) -> dict[str, str]:
        """Every node's address. Raises TimeoutError with those that do not answer."""
        deadline = time.monotonic() + seconds
        while len(self.look()) < len(self.nodes):
            if time.monotonic() > deadline:
                missing = sorted(self.nodes.keys() - self.addresses.keys())
                raise TimeoutError(f"not ready within {seconds:.0f} s: {', '.join(missing)}")
        return self.addresses

    def drain(self, timeout: float = 60.0) -> None:
        """Decode nodes first: they still need the others."""
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
    """One node's: of one machine, since a bundle is."""
    gpus = config.gpus_of(role)
    return {"CPU": config.cpus, **({"GPU": gpus} if gpus else {})}


def _answered(call: Any) -> str | None:
    """None where the actor is being restarted, or its daemon does not start."""
    try:
        return str(ray.get(call, timeout=0))
    except (GetTimeoutError, RayActorError, RayTaskError):
        return None


def supervise(config: RayConfig, flags: Sequence[str]) -> None:
    """Until Ctrl-C, which drains. Prints the nodes' addresses as one line of JSON, and again
    whenever one has moved."""
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
