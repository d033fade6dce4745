"""Where a planner's nodes are placed: what it can ask of whatever holds them."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from tasuki.routing.planner.observation import NodeRole


class NodePhase(Enum):
    """Of a node, as its cluster knows it."""

    COMING = "coming"
    """Placed, starting anew, or on its way to another role."""
    READY = "ready"
    LEAVING = "leaving"
    """It ends what is in flight, then itself."""


@dataclass(frozen=True)
class ClusterNode:
    """role: that it has, or is coming to. address, http: HOST:PORT of gRPC and of HTTP; empty until
    it was ready once."""

    name: str
    role: NodeRole
    phase: NodePhase
    address: str
    http: str


class Cluster(Protocol):
    """Thread rule: one thread at a time. No call waits for a node: what one began shows in nodes().
    Invariant: a node that leaves or changes its role lets requests in flight end."""

    def nodes(self) -> Sequence[ClusterNode]:
        """Those that have not ended, as they now are."""

    def place(self, role: NodeRole) -> None: ...

    def drain(self, name: str) -> None:
        """REQUIRES: it is ready."""

    def change_role(self, name: str, role: NodeRole) -> None:
        """REQUIRES: it is ready."""
