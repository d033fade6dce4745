"""The routes of a simulated decode node: each class is a rule for choosing a turn's prefill node.

CostRoute chooses like a real decode node. The other routes are compared with it: they know more
than a decode node, or need no information. Deterministic by their seeds. Thread rule: one thread.
"""

from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from random import Random
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from tasuki.pycache._cpp_cache import FleetIndex
from tasuki.pycache.keys import Keys
from tasuki.pycache.layout import PAGE_TOKENS, CacheLayout
from tasuki.routing.node_choice import (
    HOLDERS,
    SAMPLED_ABOVE,
    TIE_SECONDS,
    Bid,
    Candidate,
    bids,
    looked_at,
    rendezvous,
    should_move,
)
from tasuki.routing.node_load import NodeLoad, PrefillSeconds
from tasuki.routing.prefix_hints import Beginning, HintTrust, SentPrefixes

from .prefill_nodes import Members
from .workload import Turn, Workload


@dataclass(frozen=True, slots=True)
class Choice:
    """A chosen prefill node. work: expected seconds of prefill there. pulled: tokens of KV and
    state transferred first from another node. ready: end of this transfer, seconds of virtual time.
    Without pulled tokens the turn goes to the node immediately."""

    node: int
    work: float
    pulled: int = 0
    ready: float = 0.0


class Route(Protocol):
    def choose(self, turn: Turn, now: float, tried: frozenset[int]) -> Choice:
        """Choose a member node not in `tried`. REQUIRES: there is one."""
        ...

    def served(self, turn: Turn, node: int, usable: int) -> None:
        """Record the result of a turn routed by this object: `node` found `usable` prompt tokens in
        its cache."""
        ...


class ByRule:
    """A route choosing only a node's number; the expected work follows from the node's real
    cache."""

    def __init__(self, members: Members, workload: Workload, seconds: PrefillSeconds) -> None:
        self._members = members
        self._workload = workload
        self._seconds = seconds

    def served(self, turn: Turn, node: int, usable: int) -> None:
        """Do nothing, because this route does not learn."""

    def _at(self, node: int, turn: Turn) -> Choice:
        usable = self._members.servers[node].usable(turn)
        prompt_tokens = self._workload.request(turn).prompt_tokens
        return Choice(node, self._seconds.between(usable, prompt_tokens))


class StickyRoute(ByRule):
    """A route by rendezvous hashing of the session. Its node changes if nodes change or a try
    failed."""

    def __init__(self, members: Members, workload: Workload, seconds: PrefillSeconds) -> None:
        super().__init__(members, workload, seconds)
        self._homes: dict[tuple[int, int], int] = {}
        self._version = members.version

    def choose(self, turn: Turn, now: float, tried: frozenset[int]) -> Choice:
        session = self._workload.session(turn)
        if tried:
            return self._at(_home(session, self._members.besides(tried)), turn)
        if self._version != self._members.version:
            self._homes, self._version = {}, self._members.version
        node = self._homes.get(session)
        if node is None:
            node = self._homes[session] = _home(session, self._members.nodes)
        return self._at(node, turn)


class RandomRoute(ByRule):
    def __init__(
        self, members: Members, workload: Workload, seconds: PrefillSeconds, seed: int
    ) -> None:
        super().__init__(members, workload, seconds)
        self._random = Random(seed)

    def choose(self, turn: Turn, now: float, tried: frozenset[int]) -> Choice:
        return self._at(self._random.choice(self._members.besides(tried)), turn)


class FewestTransfersRoute(ByRule):
    """A route to the node with the fewest prompts, waiting and running."""

    def choose(self, turn: Turn, now: float, tried: frozenset[int]) -> Choice:
        servers = self._members.servers
        nodes = self._members.besides(tried)
        return self._at(min(nodes, key=lambda node: servers[node].transfers), turn)


class LeastWaitRoute(ByRule):
    """A route to the node with the exactly known shortest wait. If all nodes share one cache, it is
    the bound of every other route."""

    def __init__(
        self,
        members: Members,
        workload: Workload,
        seconds: PrefillSeconds,
        free_at: NDArray[np.float64],
    ) -> None:
        super().__init__(members, workload, seconds)
        self._free_at = free_at

    def choose(self, turn: Turn, now: float, tried: frozenset[int]) -> Choice:
        return self._at(int(np.argmin(self._free_at)), turn)


def _home(session: tuple[int, int], nodes: Sequence[int]) -> int:
    return int(rendezvous(f"{session[0]}/{session[1]}".encode(), map(str, nodes)))


class CostRoute:
    """A route by expected cost, like a real decode node's. It uses load reports as old as their
    delivery, the work it sent itself, and the prefix index common to all deciders. A prompt moves
    to another node once if the chosen node is busier than expected."""

    def __init__(
        self,
        members: Members,
        workload: Workload,
        seconds: PrefillSeconds,
        index: FleetIndex,
        seed: int,
        lying: Collection[int] = (),
    ) -> None:
        """Set up the route. lying: numbers of the nodes falsely listing every prompt as wholly
        cached."""
        self._members = members
        self._workload = workload
        self._seconds = seconds
        self._index = index
        self._lying = lying
        self._random = Random(seed)
        self._loads: defaultdict[int, NodeLoad] = defaultdict(NodeLoad)
        self._hints: defaultdict[int, HintTrust] = defaultdict(HintTrust)
        self._expected: dict[Turn, tuple[int, int]] = {}
        """For each turn without a result: its node, and the cached tokens expected there."""
        self._sent = SentPrefixes()
        self._first = self._random.getrandbits(32)

    def choose(self, turn: Turn, now: float, tried: frozenset[int]) -> Choice:
        held, candidates, begins = self._candidates(turn, now, tried)
        found = bids(candidates, self._workload.request(turn).prompt_tokens, self._seconds)
        chosen = self._after_the_answer(found, now)
        node = chosen.candidate.node
        self._loads[node].send(chosen.prefill, now)
        self._sent.send(begins, node, now)
        self._expected[turn] = node, held.get(node, 0)
        return Choice(node, chosen.prefill)

    def served(self, turn: Turn, node: int, usable: int) -> None:
        asked, expected = self._expected.pop(turn)
        if asked == node:
            self._hints[node].note(expected, usable)

    def _after_the_answer(self, found: list[Bid], now: float) -> Bid:
        first = found[0]
        server = self._members.servers[first.candidate.node]
        if len(found) < 2 or not server.alive:
            return first
        return found[1] if should_move(first, found[1], server.wait(now)) else first

    def _candidates(
        self, turn: Turn, now: float, tried: frozenset[int]
    ) -> tuple[dict[int, int], list[Candidate], list[Beginning]]:
        alive = self._turned(self._members.besides(tried))
        holders, begins = self._index.look_up(
            Keys(self._workload.prompt(turn)),
            self._workload.salt(turn),
            HOLDERS if len(alive) > SAMPLED_ABOVE else len(self._members.servers),
            self._random.getrandbits(64),
        )
        held, sent = dict(holders), self._sent.known(begins, now)
        tokens = self._workload.request(turn).prompt_tokens
        held.update((node, tokens - 1) for node in self._lying if node in alive)
        nodes = looked_at(
            alive, [node for node in (*held, *sent) if node not in tried], self._random
        )
        candidates = [
            self._candidate(
                node, self._hints[node].believed(held.get(node, 0)), sent.get(node, 0), now
            )
            for node in nodes
        ]
        return held, candidates, begins

    def _turned(self, nodes: Sequence[int]) -> list[int]:
        """Rotate the list of nodes by this decider's own random offset. So deciders start with
        different nodes while all nodes look alike."""
        first = self._first % len(nodes)
        return [*nodes[first:], *nodes[:first]]

    def _candidate(self, node: int, usable: int, sent: int, now: float) -> Candidate:
        load = self._loads[node]
        load.report(*self._members.servers[node].report(now))
        return Candidate(node, usable, load.wait(now), 0.0, load.stored(now), sent)


@dataclass(frozen=True)
class Link:
    """A network link between nodes. token: seconds to send the KV of one token. state: seconds to
    send one recurrent state."""

    token: float
    state: float

    def seconds(self, tokens: int) -> float:
        return self.state + self.token * tokens

    @staticmethod
    def of_speed(layout: CacheLayout, gigabytes: float) -> "Link":
        """Return the link of a given rate. gigabytes: 10^9 bytes a second."""
        rate = gigabytes * 1e9
        return Link(layout.page_bytes / PAGE_TOKENS / rate, layout.slot_bytes / rate)


class PullRoute:
    """A bound for real routes. This route knows every node's exact wait, and may transfer a prefix
    from another node instead of computing it again.

        cost = wait + least of (prefill here, transfer from the node with the longest prefix +
        prefill of the rest)

    A transfer has the links of both nodes to itself; transfers of a link follow one another.
    """

    def __init__(
        self,
        members: Members,
        workload: Workload,
        seconds: PrefillSeconds,
        index: FleetIndex,
        link: Link,
    ) -> None:
        self._members = members
        self._workload = workload
        self._seconds = seconds
        self._index = index
        self._link = link
        self._loads: defaultdict[int, NodeLoad] = defaultdict(NodeLoad)
        self._link_free: defaultdict[int, float] = defaultdict(float)

    def served(self, turn: Turn, node: int, usable: int) -> None:
        """Do nothing, because this route knows everything already."""

    def choose(self, turn: Turn, now: float, tried: frozenset[int]) -> Choice:
        nodes = self._members.besides(tried)
        held = self._held(turn, tried)
        deepest = max(held, key=lambda node: held[node], default=None)
        most = 0 if deepest is None else held[deepest]
        tokens = self._workload.request(turn).prompt_tokens
        costs = {}
        for node in nodes:
            own = held.get(node, 0)
            cost = self._seconds.between(own, tokens)
            if own < most:
                transfer = self._link.seconds(most - own)
                cost = min(cost, transfer + self._seconds.between(most, tokens))
            costs[node] = self._members.servers[node].wait(now) + cost
        least = min(costs.values())
        tied = [node for node in nodes if costs[node] <= least + TIE_SECONDS]
        chosen = min(tied, key=lambda node: self._loads[node].stored(now))
        own = held.get(chosen, 0)
        computed = self._seconds.between(own, tokens)
        transfer = self._link.seconds(most - own)
        pulls = own < most and transfer + self._seconds.between(most, tokens) < computed
        if deepest is None or not pulls:
            self._loads[chosen].send(computed, now)
            return Choice(chosen, computed)
        begins = max(now, self._link_free[deepest], self._link_free[chosen])
        ready = self._link_free[deepest] = self._link_free[chosen] = begins + transfer
        work = self._seconds.between(most, tokens)
        self._loads[chosen].send(computed, now)
        return Choice(chosen, work, most, ready)

    def _held(self, turn: Turn, tried: frozenset[int]) -> dict[int, int]:
        """Return the number of prompt tokens usable in each node's tree now, for the nodes named by
        the index and not `tried`."""
        servers = self._members.servers
        named = self._index.holders(
            Keys(self._workload.prompt(turn)), self._workload.salt(turn), len(servers), 0
        )
        return {
            node: servers[node].usable(turn)
            for node, _ in named
            if node not in tried and servers[node].alive
        }
