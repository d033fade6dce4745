"""Simulated prefill nodes, each with one prefill at a time: a prompt goes where it waits least.

A node takes the shortest first and each fourth time the oldest, as
engine/scheduling/chunks.py has it of chunks. One that leaves computes what it has. Virtual
time, seconds. Thread rule: one thread.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from tasuki.bench.fleet.nodes.prefill_server import OLDEST_EVERY


@dataclass(slots=True)
class _Node:
    """free: when what it computes ends. left: seconds of what waits."""

    free: float
    left: float = 0.0
    begun: int = 0
    waiting: deque[tuple[float, float, int]] = field(default_factory=deque)

    def take(self) -> tuple[float, float, int]:
        """Of what waits the next: its seconds, when it came, its number."""
        self.begun += 1
        oldest = self.begun % OLDEST_EVERY == 0 or len(self.waiting) == 1
        found = self.waiting[0] if oldest else min(self.waiting)
        self.waiting.remove(found)
        self.left = self.left - found[0] if self.waiting else 0.0
        return found


class PrefillPool:
    def __init__(self) -> None:
        self._ready: dict[int, _Node] = {}
        self._leaving: dict[int, _Node] = {}

    @property
    def nodes(self) -> int:
        return len(self._ready)

    def add(self, node: int, now: float) -> None:
        self._ready[node] = _Node(now)

    def leave(self) -> int:
        """The node with the least to do, which it does."""
        node = min(self._ready, key=lambda each: self._ready[each].left)
        self._leaving[node] = self._ready.pop(node)
        return node

    def left(self, now: float) -> list[int]:
        """Nodes that left and have done what they had."""
        over = [
            node for node, state in self._leaving.items() if not state.waiting and state.free <= now
        ]
        for node in over:
            del self._leaving[node]
        return over

    def serve(self, came: float, seconds: float, number: int) -> Iterator[tuple[float, int]]:
        """A prompt; when which prompts of its node end that have begun by then. REQUIRES: a node;
        prompts come in order."""
        nodes = self._ready.values()
        node = min(nodes, key=lambda each: max(came, each.free) + each.left)
        yield from _begun(node, came)
        node.waiting.append((seconds, came, number))
        node.left += seconds

    def advance(self, until: float) -> Iterator[tuple[float, int]]:
        """When which prompts end that have begun by then."""
        for node in (*self._ready.values(), *self._leaving.values()):
            yield from _begun(node, until)

    def backlog(self, now: float) -> float:
        """Seconds of prefill that are left."""
        return sum(max(0.0, node.free - now) + node.left for node in self._ready.values())


def _begun(node: _Node, until: float) -> Iterator[tuple[float, int]]:
    while node.waiting and node.free <= until:
        seconds, came, number = node.take()
        node.free = max(node.free, came) + seconds
        yield node.free, number
