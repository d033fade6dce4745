"""Tests of a planner over real daemons. Roles follow the demand and no request is lost. A restarted
planner removes no node."""

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from typing import Any

import grpc
import pytest

from tasuki.cli.fleet.config import Credentials, PollLimits
from tasuki.cli.fleet.node_poll import NodePoll
from tasuki.cli.planner.cluster import ClusterNode, NodePhase, PlacedNodes
from tasuki.cli.planner.config import NodeAccess
from tasuki.cli.planner.plan_loop import PLANNED_BY, FleetObserver, PlanLoop
from tasuki.cli.ray.actor import RayNode
from tasuki.client.errors import ClientError, RetryPolicy, is_transient
from tasuki.client.prompt import Prompt
from tasuki.client.session import Client
from tasuki.routing.planner.observation import NodeRole
from tasuki.routing.planner.policy import NodeBounds, Pace, PlanPolicy, ServiceTargets
from tasuki.transfer.transports.nixl.transport import installed_package
from tests.harness.daemons import flags, random_prompt
from tests.harness.waiting import HANG_SECONDS, until


# A planner's cluster on this machine. Each node is a daemon on its own thread, kept as Ray's actors
# keep theirs.
class _OnAThread:
    """A NodeHandle with its node on a thread."""

    def __init__(self, node: RayNode) -> None:
        self._node = node
        self._thread = ThreadPoolExecutor(1)

    def ask(self, method: str, *arguments: Any) -> "Future[Any]":
        return self._thread.submit(getattr(self._node, method), *arguments)

    def end(self) -> None:
        self._thread.submit(self._node.drain, HANG_SECONDS)
        self._thread.shutdown()


@contextmanager
def local_nodes(flags: Sequence[str]) -> Iterator[PlacedNodes]:
    """Yield nodes placed on this machine. flags: command-line flags of every daemon."""

    def start(role: NodeRole, name: str) -> _OnAThread:
        access = NodeAccess(drain_seconds=HANG_SECONDS)
        return _OnAThread(RayNode(role.value, name, flags, "127.0.0.1", access))

    nodes = PlacedNodes(start)
    try:
        yield nodes
    finally:
        nodes.end()


pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.skipif(installed_package() is None, reason="NIXL is not installed"),
]

EVERY = 0.5
# Three nodes; only their roles change. No machine meets the first target, so prefill nodes are
# planned by their load, not by the machine's speed. Every machine meets the second, so decode nodes
# are planned by memory.
POLICY = PlanPolicy(
    ServiceTargets(1e-4, 60.0, 0.95),
    NodeBounds(least=3, most=3),
    Pace(window=8.0, level=3.0, quick=1.0, ahead=1.0, settle=4.0, cool_down=1.0, clear=10.0),
)
# A node serves no clients in its current role.
ELSEWHERE = (grpc.StatusCode.UNIMPLEMENTED,)
ONCE = RetryPolicy(attempts=1)


class Callers:
    """Callers in a loop: each asks for its own answer, at any node that answers."""

    def __init__(self, many: int, prompt: int, answer: int, rests: float = 0.0) -> None:
        """Start `many` callers. rests: pause after each answer, as a multiple of the answer's
        duration."""
        self._prompt, self._answer, self._rests = prompt, answer, rests
        self._over = threading.Event()
        self._pool = ThreadPoolExecutor(many)
        self.addresses: Sequence[str] = ()
        self.answers = 0
        self._running = [self._pool.submit(self._run, caller) for caller in range(many)]

    def _run(self, caller: int) -> None:
        turn = 0
        while not self._over.is_set():
            turn += 1
            began = time.monotonic()
            self._ask(f"{caller}-{turn}".encode(), caller + turn)
            self.answers += 1
            self._over.wait(self._rests * (time.monotonic() - began))

    def _ask(self, salt: bytes, start: int) -> None:
        deadline = time.monotonic() + HANG_SECONDS
        refusals: list[str] = []
        while time.monotonic() < deadline:
            for address in self.addresses[start % max(1, len(self.addresses)) :]:
                try:
                    with Client(address, retry=ONCE) as client:
                        answer = client.generate(
                            Prompt(token_ids=random_prompt(self._prompt, start)),
                            max_new_tokens=self._answer,
                            ignore_eos=True,
                            cache_salt=salt,
                        ).result()
                    assert len(answer.token_ids) == self._answer
                    return
                except ClientError as error:
                    assert is_transient(error) or error.status in ELSEWHERE, error
                    refusals.append(str(error))
            start = 0
            self._over.wait(0.1)
        raise AssertionError(f"nobody answers: {refusals[-3:]}")

    def stop(self) -> int:
        """Stop all callers and return the total of their answers. Raise a caller's exception."""
        self._over.set()
        for each in self._running:
            each.result(HANG_SECONDS)
        self._pool.shutdown()
        return self.answers


class Planned:
    def __init__(self, nodes: PlacedNodes, plans: PlanLoop) -> None:
        self.nodes, self.plans = nodes, plans

    def standing(self) -> Sequence[ClusterNode]:
        return self.nodes.nodes()

    def roles(self) -> dict[NodeRole, int]:
        """Return the number of ready nodes by role."""
        ready = [node.role for node in self.standing() if node.phase is NodePhase.READY]
        return {role: ready.count(role) for role in NodeRole}

    async def step_until(self, prefill: int, decode: int, callers: Callers | None = None) -> None:
        deadline = time.monotonic() + 2 * HANG_SECONDS
        wanted = {NodeRole.PREFILL: prefill, NodeRole.DECODE: decode}
        while (found := await asyncio.to_thread(self.roles)) != wanted:
            assert time.monotonic() < deadline, (found, wanted)
            await self.plans.step()
            if callers is not None:
                callers.addresses = [
                    node.address
                    for node in await asyncio.to_thread(self.standing)
                    if node.role is NodeRole.DECODE and node.phase is NodePhase.READY
                ]
            await asyncio.sleep(EVERY)


@asynccontextmanager
async def planned(
    nodes: PlacedNodes, policy: PlanPolicy = POLICY, done: list[dict[str, Any]] | None = None
) -> AsyncIterator[Planned]:
    observer = FleetObserver(warm=0.1)
    limits = PollLimits(every_seconds=EVERY / 2, answer_seconds=HANG_SECONDS)
    async with NodePoll(observer, Credentials(), limits, PLANNED_BY) as poll:
        show = [].append if done is None else done.append
        yield Planned(nodes, PlanLoop(nodes, observer, poll, policy, EVERY, show))


def three(nodes: PlacedNodes) -> None:
    for role in (NodeRole.PREFILL, NodeRole.DECODE, NodeRole.DECODE):
        nodes.place(role)


def all_stand(nodes: PlacedNodes) -> bool:
    return all(node.phase is NodePhase.READY for node in nodes.nodes())


SHARED = (*flags(arena_mib=32), "--local-prefill-tokens", "64", "--prefill-chunk-tokens", "128")


@pytest.mark.slow
async def test_roles_follow_the_demand_and_come_back_and_no_request_is_lost() -> None:
    done: list[dict[str, Any]] = []
    with local_nodes(SHARED) as nodes:
        three(nodes)
        async with planned(nodes, done=done) as fleet:
            await fleet.step_until(1, 2)
            reading = Callers(6, prompt=900, answer=1)
            try:
                await fleet.step_until(2, 1, reading)
            finally:
                assert await asyncio.to_thread(reading.stop) > 0
            # These answers need more memory than one node has.
            writing = Callers(24, prompt=32, answer=400)
            try:
                await fleet.step_until(1, 2, writing)
            finally:
                assert await asyncio.to_thread(writing.stop) > 0
    assert [each["changed_to"] for each in done if "changed_to" in each][:2] == [
        "prefill",
        "decode",
    ]
    assert not [each for each in done if "placed" in each or "drained" in each]


@pytest.mark.slow
async def test_a_planner_that_begins_anew_takes_nothing_away_and_one_node_then_drains() -> None:
    """Start four nodes, two too many. The drained node still has an answer under way."""
    policy = replace(POLICY, bounds=NodeBounds(least=2, most=4))

    done: list[dict[str, Any]] = []
    with local_nodes(SHARED) as nodes:
        three(nodes)
        nodes.place(NodeRole.PREFILL)
        # A planner would plan if it saw two nodes for a whole window before the others were ready.
        await asyncio.to_thread(until, lambda: all_stand(nodes), nodes.nodes)
        # Both planners end before they have seen a whole window.
        for _ in range(2):
            async with planned(nodes, policy, done) as fleet:
                await fleet.step_until(2, 2)
                began = time.monotonic()
                while time.monotonic() - began < policy.pace.window / 3:
                    assert (made := await fleet.plans.step()) is None or not made.actions
                    await asyncio.sleep(EVERY)
        # Callers rest most of the time, so one node of each role suffices on any machine. Constant
        # callers would keep a node busy all the time. By /metrics, read at uneven times, it could
        # even seem busier.
        writing = Callers(2, prompt=32, answer=100, rests=3.0)
        try:
            async with planned(nodes, policy, done) as fleet:
                await fleet.step_until(1, 1, writing)
        finally:
            answers = await asyncio.to_thread(writing.stop)
        assert answers > 0
    assert [each for each in done if "drained" in each]
    assert not [each for each in done if "placed" in each or "changed_to" in each]


class Broken:
    """A cluster with a first query that fails."""

    def __init__(self) -> None:
        self.asked = 0
        self.placed: list[NodeRole] = []

    def nodes(self) -> Sequence[ClusterNode]:
        self.asked += 1
        if self.asked == 1:
            raise RuntimeError("the cluster did not answer")
        return [
            ClusterNode(f"{role}-{n}", role, NodePhase.COMING, "", "")
            for n, role in enumerate(self.placed)
        ]

    def place(self, role: NodeRole) -> None:
        self.placed.append(role)

    def drain(self, name: str) -> None:
        raise AssertionError("nothing was observed")

    def change_role(self, name: str, role: NodeRole) -> None:
        raise AssertionError("nothing was observed")


async def test_a_planner_that_breaks_goes_on_anew() -> None:
    cluster, observer = Broken(), FleetObserver(warm=0.1)
    async with NodePoll(observer, Credentials(), PollLimits(), PLANNED_BY) as poll:
        plans = PlanLoop(cluster, observer, poll, POLICY, 0.01, [].append)
        running = asyncio.create_task(plans.run())
        while cluster.asked < 5:
            assert not running.done()
            await asyncio.sleep(0.01)
        running.cancel()
    # The least number of nodes was placed, once.
    assert cluster.placed == [NodeRole.PREFILL, NodeRole.DECODE]
