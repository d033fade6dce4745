"""Simulated nodes of each role. Virtual time, seconds. Thread rule: one thread.

Prefill nodes have one prefill at a time: a prompt goes where it waits least. A node takes the
shortest first and each fourth time the oldest, as engine/scheduling/scheduler.py has it of
chunks. One that leaves computes what it has.

A step of a decode node takes longer with each answer and each token of context. An answer joins the
smallest batch that has memory for it and waits where none has. A step's time is that at the begin
of the tick.
"""

import heapq
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from tasuki.bench.fleet.prefill_nodes import OLDEST_EVERY


@dataclass(frozen=True)
class DecodeSpeed:
    """How long a decode node's steps take, and what it holds. fixed, answer, token: seconds of a
    step, for each answer and each token of its context. memory: tokens of context that a node
    holds."""

    fixed: float
    answer: float
    token: float
    memory: float

    def step(self, answers: float, context: float) -> float:
        return self.fixed + self.answer * answers + self.token * context


def measured(arena_gib: float, token_bytes: float) -> DecodeSpeed:
    """9B on an H200. token_bytes: of a token's cache. The three steps are of the run `9b` of
    docs/results/decode.md (2026-11-21, commit 94171c0): 1 x 50,000 tokens in 4.85 ms, 16 x 8,192 in
    6.11 ms, 64 x 8,192 in 10.61 ms; the line goes through them."""
    return DecodeSpeed(4.610e-3, 6.511e-5, 3.497e-9, arena_gib * 2**30 / token_bytes)


@dataclass(frozen=True, slots=True)
class Joining:
    """An answer whose prompt was computed at `at`."""

    at: float
    index: int
    answer: float
    context: float


@dataclass(slots=True)
class _DecodeNode:
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
    """All decode nodes of a simulated fleet."""

    def __init__(self, speed: DecodeSpeed) -> None:
        self._speed = speed
        self._ready: dict[int, _DecodeNode] = {}
        self._leaving: dict[int, _DecodeNode] = {}
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
        self._ready[node] = _DecodeNode(now)

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
        self, node: _DecodeNode, now: float, seconds: float, step: float, ended: list[Ended]
    ) -> None:
        before = node.stepped
        node.stepped += seconds / step
        ends = node.ends
        while ends and ends[0][0] <= node.stepped:
            at, _, began, answer = heapq.heappop(ends)
            node.context -= answer.context + answer.answer
            ended.append(Ended(answer.index, began, now + (at - before) * step, answer.answer))

    def _step(self, node: _DecodeNode) -> float:
        return self._speed.step(len(node.ends), node.context)


@dataclass(slots=True)
class _PrefillNode:
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
    """All prefill nodes of a simulated fleet."""

    def __init__(self) -> None:
        self._ready: dict[int, _PrefillNode] = {}
        self._leaving: dict[int, _PrefillNode] = {}

    @property
    def nodes(self) -> int:
        return len(self._ready)

    def add(self, node: int, now: float) -> None:
        self._ready[node] = _PrefillNode(now)

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


def _begun(node: _PrefillNode, until: float) -> Iterator[tuple[float, int]]:
    while node.waiting and node.free <= until:
        seconds, came, number = node.take()
        node.free = max(node.free, came) + seconds
        yield node.free, number
