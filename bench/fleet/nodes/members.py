"""The nodes of a simulated fleet as those who choose have them: a node that died is one until its
lease ends. Thread rule: one thread.
"""

from collections.abc import Sequence

from .prefill_server import PrefillServer


class Members:
    def __init__(self, servers: Sequence[PrefillServer]) -> None:
        self.servers = servers
        self.nodes = list(range(len(servers)))
        self.version = 0
        """Of nodes: another one where one has gone."""

    def drop(self, node: int) -> None:
        self.nodes.remove(node)
        self.version += 1

    def besides(self, tried: frozenset[int]) -> Sequence[int]:
        """Those but the tried ones."""
        return [node for node in self.nodes if node not in tried] if tried else self.nodes
