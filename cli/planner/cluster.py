"""A planner's cluster: the operations on nodes, independent of the host system.

Also holds nodes placed one by one, as a cluster for a planner.

Owns one handle for each node. It starts slow operations through the handle, and polls later for
their end. Thread rule: one thread at a time. Invariants: one question to a node is in flight at a
time. Decode nodes get the addresses of ready prefill nodes before a prefill node gets the order to
leave.
"""

import logging
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from enum import Enum
from typing import Any, Protocol

from tasuki.routing.planner.observation import NodeRole


class NodePhase(Enum):
    """The phase of a node's life, as known by its cluster."""

    COMING = "coming"
    """Phase: the node is being placed, restarted, or changed to another role."""
    READY = "ready"
    LEAVING = "leaving"
    """Phase: the node finishes requests in flight, then exits."""


@dataclass(frozen=True)
class ClusterNode:
    """One node of a cluster. role: current role, or the next role during a change. address, http:
    HOST:PORT of gRPC and of HTTP; empty until the node was first ready."""

    name: str
    role: NodeRole
    phase: NodePhase
    address: str
    http: str


class Cluster(Protocol):
    """A set of nodes for a planner. Thread rule: one thread at a time. No call waits for a node:
    progress shows in nodes(). Invariant: a node lets requests in flight finish before it leaves or
    changes its role."""

    def nodes(self) -> Sequence[ClusterNode]:
        """Return the current state of all nodes not yet ended."""

    def place(self, role: NodeRole) -> None: ...

    def drain(self, name: str) -> None:
        """Drain the node called `name`. REQUIRES: it is ready."""

    def change_role(self, name: str, role: NodeRole) -> None:
        """Change the role of the node called `name`. REQUIRES: it is ready."""


log = logging.getLogger(__name__)

_POLL_SECONDS = 0.1


@dataclass(frozen=True)
class Standing:
    """The role and addresses of a node ready for calls. address, http: HOST:PORT of gRPC and of
    HTTP."""

    role: str
    address: str
    http: str


class NodeHandle(Protocol):
    """The handle of a remote node: starts its methods, and releases it."""

    def ask(self, method: str, *arguments: Any) -> "Future[Any]":
        """Begin one of the node's methods and return its pending result. stand() returns the node's
        Standing, and starts the node if it is dead. follow(addresses) sets a decode node's prefill
        nodes. change_role(role) changes its role. drain() finishes requests in flight, then ends
        the node."""

    def end(self) -> None:
        """Release the node and its resources, after its drain, or if it cannot drain."""


@dataclass
class _Placed:
    """One placed node. asked: name of the method called last. answer: pending result of that
    call."""

    role: NodeRole
    handle: NodeHandle
    phase: NodePhase = NodePhase.COMING
    standing: Standing | None = None
    asked: str = ""
    answer: "Future[Any] | None" = None


class PlacedNodes:
    def __init__(self, start: Callable[[NodeRole, str], NodeHandle]) -> None:
        """Set up an empty cluster. start: function to place a node of the given role and name. It
        returns the node's handle without waiting."""
        self._start = start
        self._placed: dict[str, _Placed] = {}
        self._made = 0

    def nodes(self) -> Sequence[ClusterNode]:
        for name, placed in list(self._placed.items()):
            self._look(name, placed)
        self._introduce()
        return [_shown(name, placed) for name, placed in self._placed.items()]

    def place(self, role: NodeRole) -> None:
        self._made += 1
        # The name does not contain the role, because the role may change.
        name = f"node-{self._made}"
        placed = self._placed[name] = _Placed(role, self._start(role, name))
        _ask(placed, "stand")

    def drain(self, name: str) -> None:
        placed = self._placed[name]
        placed.phase = NodePhase.LEAVING
        self._introduce()

    def change_role(self, name: str, role: NodeRole) -> None:
        placed = self._placed[name]
        placed.role, placed.phase = role, NodePhase.COMING
        placed.asked = "to change"
        self._introduce()
        placed.handle.ask("follow", self._members())

    def drain_all(self, seconds: float) -> None:
        """Drain all nodes, decode nodes first, because they still need the prefill nodes. Blocks
        until all have ended, at most `seconds` for each role; later ones are left draining."""
        for role in (NodeRole.DECODE, NodeRole.PREFILL):
            deadline = time.monotonic() + seconds
            for name, placed in self._placed.items():
                if placed.role is role and placed.phase is not NodePhase.LEAVING:
                    self.drain(name)
            while any(node.role is role for node in self.nodes()) and time.monotonic() < deadline:
                time.sleep(_POLL_SECONDS)

    def end(self) -> None:
        """Release all nodes without a drain."""
        for placed in self._placed.values():
            placed.handle.end()
        self._placed.clear()

    def _look(self, name: str, placed: _Placed) -> None:
        """Process the completed answer of a node, and call the node's next method."""
        if placed.answer is not None and not placed.answer.done():
            return
        asked, answer, placed.answer = placed.asked, placed.answer, None
        error = answer.exception() if answer is not None else None
        if error is not None:
            log.warning("%s did not %s: %s", name, asked, error)
        match asked:
            case "stand" if answer is not None and error is None:
                placed.standing = answer.result()
                if placed.phase is NodePhase.COMING:
                    placed.phase = NodePhase.READY
                # After a restart the node may be in the role of its placement again.
                if placed.phase is NodePhase.READY:
                    placed.role = NodeRole(placed.standing.role)
            case "stand" if placed.phase is NodePhase.READY:
                placed.phase = NodePhase.COMING
            case "drain":
                placed.handle.end()
                del self._placed[name]
                return
            case "to change":
                _ask(placed, "change_role", placed.role.value)
                return
        _ask(placed, "drain" if placed.phase is NodePhase.LEAVING else "stand")

    def _introduce(self) -> None:
        """Send the ready prefill nodes' addresses to every ready decode node."""
        members = self._members()
        for placed in self._placed.values():
            # A changing or leaving node does not answer until it is done, and questions would pile
            # up.
            if placed.phase is NodePhase.READY and placed.role is NodeRole.DECODE:
                placed.handle.ask("follow", members)

    def _members(self) -> tuple[str, ...]:
        return tuple(
            placed.standing.address
            for placed in self._placed.values()
            if placed.phase is NodePhase.READY
            and placed.role is NodeRole.PREFILL
            and placed.standing is not None
        )


def _ask(placed: _Placed, method: str, *arguments: Any) -> None:
    placed.asked, placed.answer = method, placed.handle.ask(method, *arguments)


def _shown(name: str, placed: _Placed) -> ClusterNode:
    standing = placed.standing
    return ClusterNode(
        name,
        placed.role,
        placed.phase,
        "" if standing is None else standing.address,
        "" if standing is None else standing.http,
    )
