"""Nodes on a Ray cluster of several machines (on this one): placed, restarted, found again.

`python -m scripts.clients.install ray` installs Ray beside the package; its Python runs this.
"""

import os
import signal
from collections.abc import Iterator

import pytest

ray = pytest.importorskip("ray", reason="Ray is not installed: scripts.clients.install ray")

from ray.cluster_utils import Cluster  # noqa: E402

from tasuki.cli.planner.cluster import ClusterNode, NodePhase  # noqa: E402
from tasuki.cli.planner.config import NodeAccess  # noqa: E402
from tasuki.cli.ray.config import RayConfig  # noqa: E402
from tasuki.cli.ray.fleet import RayFleet, RayNodes  # noqa: E402
from tasuki.client.prompt import Prompt  # noqa: E402
from tasuki.client.session import Client  # noqa: E402
from tasuki.model.named_checkpoints import embedded_model  # noqa: E402
from tasuki.routing.planner.observation import NodeRole  # noqa: E402
from tests.harness.daemons import flags, random_prompt, until  # noqa: E402

pytestmark = [
    pytest.mark.timeout(500),
    # Ray itself leaves sockets and files to the collector.
    pytest.mark.filterwarnings("ignore"),
]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    cluster = Cluster(
        initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False}
    )
    try:
        # Two machines for the nodes, and one for a move.
        cluster.machines = [cluster.add_node(num_cpus=1) for _ in range(3)]
        ray.init(address=cluster.address, log_to_driver=False)
        yield cluster
    finally:
        ray.shutdown()
        cluster.shutdown()


@pytest.fixture
def fleet(cluster: Cluster) -> Iterator[RayFleet]:
    config = RayConfig(strategy="STRICT_SPREAD", host="127.0.0.1")
    with RayFleet(config, flags(embedded_model())) as running:
        running.wait_ready()
        yield running


def prefilled_on(fleet: RayFleet, seed: int) -> str:
    with Client(fleet.addresses["decode-0"]) as client:
        prompt = Prompt(token_ids=random_prompt(300, seed))
        usage = client.generate(prompt, max_new_tokens=4, ignore_eos=True).result().usage
        assert usage.completion_tokens == 4
        return str(usage.prefilled_on)


def test_nodes_find_each_other_and_what_dies_comes_back(cluster: Cluster, fleet: RayFleet) -> None:
    asked = iter(range(1000))

    def hands_over(gone: str = "") -> bool:
        """Return true if prefill-0, at an address other than `gone`, hands a request over. The old
        node may outlive its machine for a moment."""
        fleet.look()
        there = fleet.addresses.get("prefill-0", gone) != gone and "decode-0" in fleet.addresses
        return there and prefilled_on(fleet, next(asked)) == "prefill-0"

    until(hands_over, "no hand-over", 60.0)
    # A daemon dies: its actor starts another.
    first = fleet.addresses["prefill-0"]
    os.kill(ray.get(fleet.nodes["prefill-0"].pid.remote()), signal.SIGKILL)
    until(lambda: hands_over(first), "no hand-over after the daemon's death", 90.0)
    # A machine dies: Ray starts the actor on the remaining one.
    second = fleet.addresses["prefill-0"]
    where = ray.get(fleet.nodes["prefill-0"].machine.remote())
    (machine,) = [m for m in cluster.machines if m.node_id == where]
    cluster.remove_node(machine, allow_graceful=False)
    until(lambda: hands_over(second), "no hand-over after the machine's death", 180.0)
    assert ray.get(fleet.nodes["prefill-0"].machine.remote()) != where
    fleet.drain()


def test_planned_nodes_come_change_their_roles_and_go(cluster: Cluster) -> None:
    config = RayConfig(host="127.0.0.1", cpus=0.5)
    nodes = RayNodes(config, flags(embedded_model()), NodeAccess(drain_seconds=60.0))

    def found(role: NodeRole) -> list[ClusterNode]:
        return [
            node
            for node in nodes.nodes()
            if node.role is role and node.phase is NodePhase.READY and node.http
        ]

    def stand(prefill: int, decode: int) -> bool:
        return (len(found(NodeRole.PREFILL)), len(found(NodeRole.DECODE))) == (prefill, decode)

    def hands_over() -> bool:
        (decode,) = found(NodeRole.DECODE)
        with Client(decode.address) as client:
            prompt = Prompt(token_ids=random_prompt(300, next(asked)))
            usage = client.generate(prompt, max_new_tokens=4, ignore_eos=True).result().usage
        return str(usage.prefilled_on) in {node.name for node in found(NodeRole.PREFILL)}

    asked = iter(range(1000))
    try:
        nodes.place(NodeRole.PREFILL)
        nodes.place(NodeRole.DECODE)
        nodes.place(NodeRole.DECODE)
        until(lambda: stand(1, 2), nodes.nodes, 180.0)
        changed = found(NodeRole.DECODE)[0].name
        nodes.change_role(changed, NodeRole.PREFILL)
        until(lambda: stand(2, 1), nodes.nodes, 180.0)
        until(hands_over, "no hand-over", 60.0)
        nodes.drain(changed)
        until(lambda: len(nodes.nodes()) == 2, nodes.nodes, 180.0)
        until(hands_over, "no hand-over after one has gone", 60.0)
    finally:
        nodes.end()
