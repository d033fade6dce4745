"""The choice by cost, as a decode node makes it: with loads that are as old as reports come, beside
what it sent itself, and the index that all share. Deterministic by its seed. Thread rule: one
thread.
"""

from collections import defaultdict
from collections.abc import Collection, Sequence
from random import Random

from tasuki.pycache._cpp_cache import FleetIndex
from tasuki.routing.node_load import NodeLoad, PrefillSeconds
from tasuki.routing.prefill_choice import (
    HOLDERS,
    SAMPLED_ABOVE,
    Bid,
    Candidate,
    bids,
    looked_at,
    should_move,
)
from tasuki.routing.prefix_hints import Beginning, HintTrust, SentPrefixes

from .nodes.members import Members
from .routes import Choice
from .workload import Turn, Workload


class CostRoute:
    """Moved once where the node that was chosen has more to do than was thought."""

    def __init__(
        self,
        members: Members,
        workload: Workload,
        seconds: PrefillSeconds,
        index: FleetIndex,
        seed: int,
        lying: Collection[int] = (),
    ) -> None:
        """lying: nodes that list every prompt as held whole."""
        self._members = members
        self._workload = workload
        self._seconds = seconds
        self._index = index
        self._lying = lying
        self._random = Random(seed)
        self._loads: defaultdict[int, NodeLoad] = defaultdict(NodeLoad)
        self._hints: defaultdict[int, HintTrust] = defaultdict(HintTrust)
        self._expected: dict[Turn, tuple[int, int]] = {}
        """The node that a turn was sent to, and what that is said to hold of it."""
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
            self._workload.prompt(turn),
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
        """In an order of this decider's own: while nobody knows of a difference, not all begin with
        the same node."""
        first = self._first % len(nodes)
        return [*nodes[first:], *nodes[:first]]

    def _candidate(self, node: int, usable: int, sent: int, now: float) -> Candidate:
        load = self._loads[node]
        load.report(*self._members.servers[node].report(now))
        return Candidate(node, usable, load.wait(now), 0.0, load.stored(now), sent)
