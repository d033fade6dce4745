"""The events of a simulated fleet, in virtual time.

Owns the clock and the counts. A turn arrives, is sent, waits, is prefilled and is answered; then
its next turn arrives. Prompts of a dead node are sent elsewhere, including those sent before its
death was noticed. Their time counts from their arrival. Thread rule: one thread. Deterministic.
"""

import heapq
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial

from tasuki.model.costs import PrefillFlops

from .index_feed import Change, IndexFeed
from .prefill_nodes import Members, Prompt, Served
from .routes import Route
from .workload import Turn, Workload

RETRY_SECONDS = 1.0
"""Seconds until a decode node notices a broken link or a refused transfer."""
LEASE_SECONDS = 5.0
"""Seconds a node remains a member after its death."""


@dataclass
class Counts:
    """Sums over the answered turns after the warm-up. arrived, answered: numbers of turns,
    including the warm-up. turns: answered turns after the warm-up. flops: FLOPs of whole prompts.
    flops_saved: FLOPs of cached prompt tokens. ttft: seconds to each first token. choices: CPU
    seconds of each choice of a node. work: prefill FLOPs by node."""

    arrived: int = 0
    answered: int = 0
    turns: int = 0
    prompt_tokens: int = 0
    usable_tokens: int = 0
    flops: float = 0.0
    flops_saved: float = 0.0
    ttft: list[float] = field(default_factory=list)
    choices: list[float] = field(default_factory=list)
    work: dict[int, float] = field(default_factory=dict)
    events: int = 0
    asked_again: int = 0
    pulled_tokens: int = 0


class Simulation:
    def __init__(
        self,
        members: Members,
        deciders: Sequence[Route],
        workload: Workload,
        flops: PrefillFlops,
        feed: IndexFeed | None,
    ) -> None:
        """Set up a simulation. deciders: routes, one for each simulated decode node. feed: updates
        the deciders' prefix index; None if they use no index."""
        self._members = members
        self._deciders = deciders
        self._workload = workload
        self._flops = flops
        self._feed = feed
        self._events: list[tuple[float, int, Callable[[float], None]]] = []
        self._pushed = 0
        self._counts = Counts()
        self._until = 0.0
        self._from = 0.0

    def run(self, seconds: float, warm_up: float, deaths: Iterable[tuple[float, int]]) -> Counts:
        """Run the turns arriving before `seconds`, and return the counts. Turns arriving before
        warm_up are not counted. deaths: virtual time and node number of each death."""
        self._from, self._until = warm_up, seconds
        for turn in self._workload.first_turns():
            self._arrive(turn, turn.seconds)
        for at, node in deaths:
            self._push(at, partial(self._lose, node))
        while self._events:
            now, _, happens = heapq.heappop(self._events)
            self._counts.events += 1
            happens(now)
        return self._counts

    def _begin(self, turn: Turn, now: float) -> None:
        self._counts.arrived += 1
        self._send(turn, now, frozenset(), now)

    def _send(self, turn: Turn, came: float, tried: frozenset[int], now: float) -> None:
        """Send a turn to a chosen node. came: time of its arrival. tried: nodes already asked
        without success."""
        decider = self._decider(turn)
        began = time.thread_time()
        choice = decider.choose(turn, now, tried)
        self._counts.choices.append(time.thread_time() - began)
        prompt = Prompt(turn, came, choice.work, choice.pulled)
        if choice.pulled:
            self._counts.pulled_tokens += choice.pulled
            self._push(choice.ready, partial(self._reach, choice.node, prompt, frozenset()))
        else:
            self._reach(choice.node, prompt, tried, now)

    def _reach(self, node: int, prompt: Prompt, tried: frozenset[int], now: float) -> None:
        server = self._members.servers[node]
        if not server.alive:
            self._send_again(prompt, now, tried | {node})
            return
        self._began(node, server.put(prompt, now), now)

    def _end(self, node: int, now: float) -> None:
        server = self._members.servers[node]
        if not server.alive:
            return
        served, ends = server.end(now)
        self._began(node, ends, now)
        self._count(node, served)
        self._decider(served.turn).served(served.turn, node, served.usable)
        answered = now + self._workload.answer_seconds(served.turn)
        if (following := self._workload.next_turn(served.turn, answered)) is not None:
            self._arrive(*following)

    def _follow(self, change: Change, now: float) -> None:
        feed = self._feed
        if feed is None or not self._members.servers[change.node].alive:
            return
        if (snapshot := feed.apply(change)) is not None:
            self._push(now + feed.seconds, partial(self._follow, snapshot))

    def _lose(self, node: int, now: float) -> None:
        for prompt in self._members.servers[node].lose():
            self._send_again(prompt, now, frozenset((node,)))
        self._push(now + LEASE_SECONDS, partial(self._forget, node))

    def _forget(self, node: int, now: float) -> None:
        self._members.drop(node)
        if self._feed is not None:
            self._feed.forget(node)

    def _decider(self, turn: Turn) -> Route:
        conversation = self._workload.request(turn).conversation or (turn.index, 0)
        return self._deciders[(turn.stream * 7919 + conversation[0]) % len(self._deciders)]

    def _send_again(self, prompt: Prompt, now: float, tried: frozenset[int]) -> None:
        self._counts.asked_again += 1
        self._push(now + RETRY_SECONDS, partial(self._send, prompt.turn, prompt.came, tried))

    def _began(self, node: int, ends: float | None, now: float) -> None:
        if ends is not None:
            self._push(ends, partial(self._end, node))
        if self._feed is not None and (change := self._feed.changes(node)) is not None:
            self._push(now + self._feed.seconds, partial(self._follow, change))

    def _arrive(self, turn: Turn, at: float) -> None:
        if at < self._until:
            self._push(at, partial(self._begin, turn))

    def _push(self, at: float, happens: Callable[[float], None]) -> None:
        """Schedule an event at the virtual time `at`. happens: called with this time."""
        self._pushed += 1
        heapq.heappush(self._events, (at, self._pushed, happens))

    def _count(self, node: int, served: Served) -> None:
        counts = self._counts
        counts.answered += 1
        if served.came < self._from:
            return
        tokens = self._workload.request(served.turn).prompt_tokens
        counts.turns += 1
        counts.prompt_tokens += tokens
        counts.usable_tokens += served.usable
        computed = self._flops.of(tokens) - self._flops.of(served.usable)
        counts.flops += self._flops.of(tokens)
        counts.flops_saved += self._flops.of(served.usable)
        counts.ttft.append(served.ended - served.came)
        counts.work[node] = counts.work.get(node, 0.0) + computed
