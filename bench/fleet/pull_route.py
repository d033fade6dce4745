"""A bound: the choice that pulls what another node holds instead of computing it again, and knows
every wait.

    cost = wait + least of (prefill here, transfer from the deepest holder + prefill of the rest)

A transfer has the links of both nodes to itself, one behind another. Thread rule: one thread.
"""

from collections import defaultdict
from dataclasses import dataclass

from tasuki.pycache._cpp_cache import FleetIndex
from tasuki.pycache.layout import PAGE_TOKENS, CacheLayout
from tasuki.routing.node_load import NodeLoad, PrefillSeconds
from tasuki.routing.prefill_choice import TIE_SECONDS

from .nodes.members import Members
from .routes import Choice
from .workload import Turn, Workload


@dataclass(frozen=True)
class Link:
    """Of a node. token, state: seconds of the KV of a token and of one state."""

    token: float
    state: float

    def seconds(self, tokens: int) -> float:
        return self.state + self.token * tokens

    @staticmethod
    def of_speed(layout: CacheLayout, gigabytes: float) -> "Link":
        """gigabytes: a second, 10^9 bytes."""
        rate = gigabytes * 1e9
        return Link(layout.page_bytes / PAGE_TOKENS / rate, layout.slot_bytes / rate)


class PullRoute:
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
        """All is known already."""

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
        """Tokens that a node's tree has now, of those that the index names."""
        servers = self._members.servers
        named = self._index.holders(
            self._workload.prompt(turn), self._workload.salt(turn), len(servers), 0
        )
        return {
            node: servers[node].usable(turn)
            for node, _ in named
            if node not in tried and servers[node].alive
        }
