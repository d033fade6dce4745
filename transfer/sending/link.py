"""Links to peers: the cost of a link, and the lease for writes to a peer.

Thread rule: the transfer thread changes costs, any thread reads them; leases are under one lock.
"""

import math
import threading
from collections.abc import Sequence, Set
from dataclasses import dataclass, field
from functools import cached_property

from tasuki.pycache._cpp_cache import WriteLease
from tasuki.pycache.layout import ONLY_ARENA, ArenaKey, CacheLayout, rank_layout
from tasuki.transfer.chunks.chunk import StepCounter
from tasuki.transfer.chunks.digest import Digester
from tasuki.transfer.ranks.region import RankSpans
from tasuki.transfer.transports.base import Endpoint, Transport
from tasuki.utils.signatures import Clock

from .chunk_source import ChunkSource, DirectSource

_KEPT = 0.95
"""Factor on the sums at each further chunk: about the last twenty chunks decide."""
_LEAST_SPREAD = 0.05
"""Least deviation of chunk sizes, as a share of their mean, to separate latency and speed."""

_SLACK = 4.0
_SLOWEST_BYTE_SECONDS = 1e-6
"""Assumed seconds for each byte over a link of unknown speed, to judge if it has stalled."""


@dataclass(frozen=True)
class LinkSpeed:
    """Speed of a link: seconds(bytes) = chunk_seconds + bytes * byte_seconds.

    mean_bytes: mean size of the measured chunks. spread: True if chunks of different sizes were
    measured, so the two terms are known separately.
    """

    chunk_seconds: float
    byte_seconds: float
    mean_bytes: float
    spread: bool


class LinkCost:
    """Cost of one connection, in seconds for each chunk and seconds for each byte, learnt from its
    flushed chunks.

    Owns decayed sums of (bytes, seconds) and the bytes in flight. Knows no transfers and no layers.
    A chunk's seconds count from its post or from the previous flush, the later time. A chunk alone
    on the link shows the link's latency; a chunk in a queue shows only its share of the wire.
    Chunks of two sizes separate latency and speed; chunks of one size show only their mean. Thread
    rule: the transfer thread changes it, any thread reads it.
    """

    def __init__(self) -> None:
        self.in_flight_bytes = 0
        self.last_flush = float("-inf")
        self.newest_flushed = float("-inf")
        """Latest post time among the flushed chunks, in monotonic seconds."""
        self._weight = 0.0
        self._bytes = 0.0
        self._seconds = 0.0
        self._bytes_bytes = 0.0
        self._bytes_seconds = 0.0
        self.cost: LinkSpeed | None = None
        """Learnt speed of the link; None until a chunk with bytes was flushed."""

    def seconds_for(self, size: int) -> float | None:
        """Return the expected seconds for `size` bytes on an idle link; None until a speed is
        learnt."""
        cost = self.cost
        return None if cost is None else cost.chunk_seconds + size * cost.byte_seconds

    def patience(self) -> float:
        """Return a time limit in seconds: several times that of flushing the bytes in flight."""
        size = self.in_flight_bytes
        known = self.seconds_for(size)
        return _SLACK * (size * _SLOWEST_BYTE_SECONDS if known is None else known)

    def posted(self, size: int) -> None:
        self.in_flight_bytes += size

    def gone(self, size: int) -> None:
        """Record the end of a posted chunk of `size` bytes: it failed or was given up."""
        self.in_flight_bytes -= size

    def flushed(self, size: int, posted_at: float, now: float) -> None:
        """Record flushed chunks of `size` bytes in all. posted_at: post time of the first. Times
        are of one monotonic clock. Chunks without bytes teach no cost."""
        self.in_flight_bytes -= size
        seconds = now - max(posted_at, self.last_flush)
        self.last_flush = max(self.last_flush, now)
        self.newest_flushed = max(self.newest_flushed, posted_at)
        # A notification alone shows nothing about bytes.
        if size and seconds > 0:
            self._learn(float(size), seconds)

    def _learn(self, size: float, seconds: float) -> None:
        self._weight = self._weight * _KEPT + 1.0
        self._bytes = self._bytes * _KEPT + size
        self._seconds = self._seconds * _KEPT + seconds
        self._bytes_bytes = self._bytes_bytes * _KEPT + size * size
        self._bytes_seconds = self._bytes_seconds * _KEPT + size * seconds
        mean_bytes, mean_seconds = self._bytes / self._weight, self._seconds / self._weight
        variance = self._bytes_bytes / self._weight - mean_bytes**2
        covariance = self._bytes_seconds / self._weight - mean_bytes * mean_seconds
        spread = variance > (_LEAST_SPREAD * mean_bytes) ** 2
        whole = mean_seconds / mean_bytes
        slope = min(max(covariance / variance, 0.01 * whole), whole) if spread else whole
        latency = max(0.0, mean_seconds - slope * mean_bytes)
        self.cost = LinkSpeed(latency, slope, mean_bytes, spread)


@dataclass(frozen=True)
class SourceArena:
    """Arena of this node as the source of chunks.

    steps: counter of the finished layers of the forwards filling it. ranks: number of ranks; each
    has an arena of `slabs` slabs, one behind another in the memory. REQUIRES: transport has
    registered at least this memory.
    """

    slabs: int
    transport: Transport
    chunk_source: ChunkSource
    steps: StepCounter
    key: ArenaKey = ONLY_ARENA
    ranks: int = 1

    def part(self, layout: CacheLayout) -> CacheLayout:
        """Return the layout of each rank's arena. layout: of a single rank with all heads."""
        return layout if self.ranks == 1 else rank_layout(layout, self.ranks, 0)

    @staticmethod
    def direct(
        layout: CacheLayout,
        transport: Transport,
        digester: Digester,
        steps: StepCounter,
        slabs: int,
    ) -> "SourceArena":
        """Make the source of a node's only arena, with pages and slots sent unchanged. digester:
        digester of this arena."""
        return SourceArena(slabs, transport, DirectSource(layout, digester), steps)


@dataclass(frozen=True)
class Link:
    """Link from one arena of this node to one arena of a peer.

    A sender holds one `SourceArena` for each of its node's sending arenas. It holds one `Link` to a
    peer for each of these arenas; today there is one. Immutable except for a link's rate.
    chunk_source: source of chunks for the peer's arenas. theirs: layout and places of the peer's
    arenas. endpoint: opened by source.transport, and closed by it. rate: learnt cost of the link.
    """

    source: SourceArena
    chunk_source: ChunkSource
    endpoint: Endpoint
    theirs: RankSpans
    rate: LinkCost = field(default_factory=LinkCost)

    @cached_property
    def rings(self) -> bool:
        """Return True if the transport rings a bell when a posted write ends, to wake the sender's
        thread. Else it must be polled."""
        return self.source.transport.rings(self.endpoint)

    @property
    def ready_until(self) -> float:
        """Return the highest step (count of finished layers) up to which chunks may go to the
        transport now; infinite if it can wait for steps itself."""
        return math.inf if self.holds else self.source.steps.value

    @cached_property
    def holds(self) -> bool:
        """Return True if chunks may be given to the transport before their layers are finished."""
        source = self.chunk_source
        return (
            source.in_place
            and source.digester.of_gpu is not None
            and self.source.transport.holds(self.endpoint)
        )

    def disconnect(self) -> None:
        """Close the link's endpoint. Raises TransportError."""
        self.source.transport.disconnect(self.endpoint)


@dataclass
class Peer:
    """Peer with its links and its lease. renewed: start time of the lease in monotonic seconds.
    lease: the same lease for chunks held by the transport; checked when they are posted."""

    links: tuple[Link, ...]
    renewed: float
    lease: WriteLease = field(default_factory=WriteLease)


class WriteLeases:
    """Peers this node may write to: the links to them, and the leases for writing.

    Knows no transfers and no transports. Thread rule: any thread, one lock. Invariant: a lease
    counts from the time this node asked for the granted renewal. The peer counts from the later
    time of the question's arrival, so it never believes the lease over too early.
    """

    def __init__(self, lease_seconds: float, clock: Clock) -> None:
        self._lease_seconds = lease_seconds
        self._clock = clock
        self._lock = threading.Lock()
        self._peers: dict[str, Peer] = {}
        self._leaving: dict[str, tuple[Link, ...]] = {}

    def add(self, name: str, links: Sequence[Link], asked_at: float | None = None) -> None:
        """Add a peer. Its lease starts at asked_at, or now if that is None. REQUIRES: the name was
        never used before."""
        with self._lock:
            renewed = self._clock() if asked_at is None else asked_at
            peer = self._peers[name] = Peer(tuple(links), renewed)
            peer.lease.extend(renewed + self._lease_seconds)

    def names(self) -> list[str]:
        with self._lock:
            return list(self._peers)

    def peer(self, name: str) -> Peer | None:
        """Return the peer, even if its lease has ended; None if it is unknown."""
        with self._lock:
            return self._peers.get(name)

    def writable(self, name: str) -> Peer | None:
        """Return the peer if its lease is valid now; else None."""
        with self._lock:
            peer = self._peers.get(name)
            if peer is None or self._clock() - peer.renewed > self._lease_seconds:
                return None
            return peer

    def renew(self, name: str, asked_at: float) -> None:
        """Renew the peer's lease from asked_at on; an older asked_at changes nothing. An unknown
        name is ignored: the peer was removed before its answer came."""
        with self._lock:
            peer = self._peers.get(name)
            if peer is not None:
                peer.renewed = max(peer.renewed, asked_at)
                peer.lease.extend(peer.renewed + self._lease_seconds)

    def remove(self, name: str) -> None:
        """Remove the peer and end its lease. Idempotent. left() returns its links until forget() is
        called."""
        with self._lock:
            peer = self._peers.pop(name, None)
            if peer is not None:
                peer.lease.extend(-math.inf)
                self._leaving[name] = peer.links

    def left(self, busy: Set[str]) -> list[tuple[str, tuple[Link, ...]]]:
        """Return the removed peers not in `busy`, with their links, to be disconnected. busy: peers
        with live transfers."""
        with self._lock:
            return [item for item in self._leaving.items() if item[0] not in busy]

    def forget(self, name: str) -> None:
        """Forget a removed peer, once its endpoints are closed."""
        with self._lock:
            del self._leaving[name]

    def has_endpoint(self, name: str) -> bool:
        """Return True if the peer is connected, or removed with endpoints still open."""
        with self._lock:
            return name in self._peers or name in self._leaving
