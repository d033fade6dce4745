"""Simulated decode nodes: a step takes longer with each answer and each token of context.

An answer joins the smallest batch that has memory for it and waits where none has. A step's time
is that at the begin of the tick. Virtual time, seconds. Thread rule: one thread.
"""

import heapq
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from .decode_speed import DecodeSpeed


@dataclass(frozen=True, slots=True)
class Joining:
    """An answer whose prompt was computed at `at`."""

    at: float
    index: int
    answer: float
    context: float


@dataclass(slots=True)
class _Node:
    """stepped: steps that it has made. ends: by how many steps each of its answers ends, a heap."""

    since: float
    stepped: float = 0.0
    ends: list[tuple[float, int, float, Joining]] = field(default_factory=list)
    context: float = 0.0


@dataclass(frozen=True, slots=True)
class Ended:
    index: int
    began: float
    ended: float
    answer: float


class DecodePool:
    def __init__(self, speed: DecodeSpeed) -> None:
        self._speed = speed
        self._ready: dict[int, _Node] = {}
        self._leaving: dict[int, _Node] = {}
        self.waiting: deque[Joining] = deque()

    @property
    def nodes(self) -> int:
        return len(self._ready)

    @property
    def running(self) -> int:
        return sum(len(node.ends) for node in (*self._ready.values(), *self._leaving.values()))

    @property
    def held(self) -> float:
        """Of one node's memory, by an answer; 0 without any."""
        context = sum(node.context for node in self._ready.values())
        running = sum(len(node.ends) for node in self._ready.values())
        return context / running / self._speed.memory if running else 0.0

    def add(self, node: int, now: float) -> None:
        self._ready[node] = _Node(now)

    def leave(self) -> int:
        """The node with the fewest answers, which it ends."""
        node = min(self._ready, key=lambda each: len(self._ready[each].ends))
        self._leaving[node] = self._ready.pop(node)
        return node

    def left(self) -> list[int]:
        """Nodes that have ended their last answer."""
        over = [node for node, state in self._leaving.items() if not state.ends]
        for node in over:
            del self._leaving[node]
        return over

    def steps(self, now: float, warm: float) -> tuple[float, float]:
        """Mean batch, and mean seconds of a step, of nodes that are there for `warm` seconds and
        have answers."""
        seen = [
            (len(node.ends), self._step(node))
            for node in self._ready.values()
            if node.ends and now - node.since >= warm
        ]
        if not seen:
            return 0.0, 0.0
        return sum(b for b, _ in seen) / len(seen), sum(s for _, s in seen) / len(seen)

    def tick(self, now: float, seconds: float, joining: Iterable[Joining]) -> list[Ended]:
        """From now on so long; those that join do within. What ended meanwhile."""
        steps = {
            key: self._step(node) for key, node in (*self._ready.items(), *self._leaving.items())
        }
        self._seat(now, joining, steps)
        ended: list[Ended] = []
        for nodes in (self._ready, self._leaving):
            for key, node in nodes.items():
                self._advance(node, now, seconds, steps[key], ended)
        return ended

    def _seat(self, now: float, joining: Iterable[Joining], steps: dict[int, float]) -> None:
        self.waiting.extend(joining)
        if not self.waiting or not self._ready:
            return
        sizes = [(len(node.ends), key) for key, node in self._ready.items()]
        heapq.heapify(sizes)
        while self.waiting and sizes:
            first = self.waiting[0]
            size, key = sizes[0]
            node = self._ready[key]
            if node.context + first.context + first.answer > self._speed.memory:
                heapq.heappop(sizes)
                continue
            began = max(now, first.at)
            into = node.stepped + (began - now) / steps[key] + first.answer
            heapq.heappush(node.ends, (into, first.index, began, self.waiting.popleft()))
            node.context += first.context + first.answer
            heapq.heapreplace(sizes, (size + 1, key))

    def _advance(
        self, node: _Node, now: float, seconds: float, step: float, ended: list[Ended]
    ) -> None:
        before = node.stepped
        node.stepped += seconds / step
        ends = node.ends
        while ends and ends[0][0] <= node.stepped:
            at, _, began, answer = heapq.heappop(ends)
            node.context -= answer.context + answer.answer
            ended.append(Ended(answer.index, began, now + (at - before) * step, answer.answer))

    def _step(self, node: _Node) -> float:
        return self._speed.step(len(node.ends), node.context)
