"""How a simulated decode node chooses the prefill node of a turn, each route a class.

Here those that know what no decode node does, or need nothing: what others are compared with.
Deterministic by their seeds. Thread rule: one thread.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from tasuki.routing.node_load import PrefillSeconds
from tasuki.routing.prefill_choice import rendezvous

from .nodes.members import Members
from .workload import Turn, Workload


@dataclass(frozen=True, slots=True)
class Choice:
    """work: seconds of prefill that are expected at the node. pulled: tokens of KV and state that
    first come from another node, until the second `ready`; where none do it goes there at once."""

    node: int
    work: float
    pulled: int = 0
    ready: float = 0.0


class Route(Protocol):
    def choose(self, turn: Turn, now: float, tried: frozenset[int]) -> Choice:
        """Of the members but for those tried. REQUIRES: there is one."""
        ...

    def served(self, turn: Turn, node: int, usable: int) -> None:
        """A turn that it chose for: so many tokens were not computed."""
        ...


class ByRule:
    """A route that needs no more than a node's number."""

    def __init__(self, members: Members, workload: Workload, seconds: PrefillSeconds) -> None:
        self._members = members
        self._workload = workload
        self._seconds = seconds

    def served(self, turn: Turn, node: int, usable: int) -> None:
        """Nothing is learnt of it."""

    def _at(self, node: int, turn: Turn) -> Choice:
        usable = self._members.servers[node].usable(turn)
        prompt_tokens = self._workload.request(turn).prompt_tokens
        return Choice(node, self._seconds.between(usable, prompt_tokens))


class StickyRoute(ByRule):
    """By rendezvous of the session."""

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


class FewestRoomsRoute(ByRule):
    """By the number of prompts that a node has."""

    def choose(self, turn: Turn, now: float, tried: frozenset[int]) -> Choice:
        servers = self._members.servers
        nodes = self._members.besides(tried)
        return self._at(min(nodes, key=lambda node: servers[node].rooms), turn)


class LeastWaitRoute(ByRule):
    """By the exact wait; of nodes that share one cache, the bound of every other route."""

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
