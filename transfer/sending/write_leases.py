"""Which peers this node may write to now: the links to them, and their leases on this node as a
writer.

Knows no rooms and no transports. Thread rule: any thread, one lock. Invariant: a lease counts from
when this node asked for the renewal that was granted, so that the peer, who counts from when it was
asked, never believes it over before it is.
"""

import math
import threading
from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass, field

from tasuki.pycache._cpp_cache import WriteLease

from .link import Link


@dataclass
class Peer:
    """lease: the same, for what is held until its tick."""

    links: tuple[Link, ...]
    renewed: float
    lease: WriteLease = field(default_factory=WriteLease)


class WriteLeases:
    def __init__(self, lease_seconds: float, clock: Callable[[], float]) -> None:
        self._lease_seconds = lease_seconds
        self._clock = clock
        self._lock = threading.Lock()
        self._peers: dict[str, Peer] = {}
        self._leaving: dict[str, tuple[Link, ...]] = {}

    def add(self, name: str, links: Sequence[Link], asked_at: float | None = None) -> None:
        """The lease starts at asked_at, or now. REQUIRES: the name was never used before."""
        with self._lock:
            renewed = self._clock() if asked_at is None else asked_at
            peer = self._peers[name] = Peer(tuple(links), renewed)
            peer.lease.extend(renewed + self._lease_seconds)

    def names(self) -> list[str]:
        with self._lock:
            return list(self._peers)

    def peer(self, name: str) -> Peer | None:
        """Whether or not its lease holds."""
        with self._lock:
            return self._peers.get(name)

    def writable(self, name: str) -> Peer | None:
        """The peer, if its lease holds at this moment."""
        with self._lock:
            peer = self._peers.get(name)
            if peer is None or self._clock() - peer.renewed > self._lease_seconds:
                return None
            return peer

    def renew(self, name: str, asked_at: float) -> None:
        """Unknown names are ignored: the answer came after the peer had left."""
        with self._lock:
            peer = self._peers.get(name)
            if peer is not None:
                peer.renewed = max(peer.renewed, asked_at)
                peer.lease.extend(peer.renewed + self._lease_seconds)

    def remove(self, name: str) -> None:
        """Idempotent. left() gives the links until they are forgotten."""
        with self._lock:
            peer = self._peers.pop(name, None)
            if peer is not None:
                peer.lease.extend(-math.inf)
                self._leaving[name] = peer.links

    def left(self, busy: Set[str]) -> list[tuple[str, tuple[Link, ...]]]:
        """Removed peers that are not in `busy`, with the links to them."""
        with self._lock:
            return [item for item in self._leaving.items() if item[0] not in busy]

    def forget(self, name: str) -> None:
        """A removed peer's endpoints are closed."""
        with self._lock:
            del self._leaving[name]

    def has_endpoint(self, name: str) -> bool:
        """Whether the peer's endpoints are not closed yet."""
        with self._lock:
            return name in self._peers or name in self._leaving
