"""A planner's cluster on this machine: each node a daemon, kept as Ray's actors keep theirs, on a
thread of its own."""

from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

from tasuki.cli.planner.cluster import PlacedNodes
from tasuki.cli.planner.config import NodeAccess
from tasuki.cli.ray.actor import RayNode
from tasuki.routing.planner.observation import NodeRole
from tests.harness.waiting import HANG_SECONDS


class _OnAThread:
    """A NodeHandle."""

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
    """flags: of every daemon."""

    def start(role: NodeRole, name: str) -> _OnAThread:
        access = NodeAccess(drain_seconds=HANG_SECONDS)
        return _OnAThread(RayNode(role.value, name, flags, "127.0.0.1", access))

    nodes = PlacedNodes(start)
    try:
        yield nodes
    finally:
        nodes.end()
