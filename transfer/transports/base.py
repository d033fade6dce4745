"""Interface of a transport, and the pace of polling one.

Thread rule: every method of a transport may be called from any thread. None except connect() blocks
for longer than posting takes.
"""

import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from tasuki.pycache._cpp_cache import AskedDigest, Bell, GpuDigester, StepCounter, WriteLease
from tasuki.transfer.chunks.descriptors import Segments, TransferUnits
from tasuki.transfer.chunks.digest import ArenaChunk
from tasuki.transfer.errors import TransportError
from tasuki.utils.signatures import Clock


@dataclass(frozen=True)
class Region:
    """The one allocation for sending and receiving in a node: its arena, bytes [address, address +
    size)."""

    address: int
    size: int


@dataclass(frozen=True)
class RankMemory:
    """A rank's arena on its GPU. address: in this process. handle: maps its allocation in another
    process; the arena is at `offset` in it. gpu: the UUID of its GPU."""

    address: int
    handle: bytes
    offset: int
    gpu: str


class TransferState(Enum):
    """State of a posted transfer. DROPPED: it was held, and dropped before anything was posted."""

    PENDING = "pending"
    DONE = "done"
    DROPPED = "dropped"


class Endpoint(ABC):
    """A connected peer."""

    @property
    @abstractmethod
    def remote_size(self) -> int:
        """Return the bytes of the peer's region."""


class Transfer:
    """A posted transfer; released exactly once, by Transport.release."""

    @property
    def posted_at(self) -> float | None:
        """Return the time the transport posted it, on the monotonic clock; None if not yet, or if
        post() did."""
        return None

    @property
    def ended_at(self) -> float | None:
        """Return the time it ended, on the monotonic clock; None if not yet, or if only poll() can
        see it."""
        return None


class HeldTransfer(Transfer, ABC):
    """Transfer posted once its tick has come, and digested from then on."""

    @property
    @abstractmethod
    def digest(self) -> AskedDigest: ...


@dataclass(frozen=True)
class Write:
    """Arguments of one post()."""

    segments: Segments
    notification: bytes


@dataclass(frozen=True)
class HeldWrite:
    """tick: from this tick on it may be posted. window: its place in this arena, for its digest."""

    write: Write
    tick: int
    chunk: ArenaChunk


@dataclass(frozen=True)
class Holding:
    """Conditions of writes held together. lease: a held write is posted only while the lease holds.
    digester: a GPU's, for the sent bytes."""

    steps: StepCounter
    lease: WriteLease
    digester: GpuDigester


class Transport(ABC):
    """Interface of a transport: one-sided writes into one registered region of a peer, with
    notifications.

    A transport knows bytes and offsets; it knows no layers, pages, rooms or leases. Its callers
    handle liveness, generations and fences: a finished transfer means "flushed", never "the peer is
    alive" or "wanted it". Thread rule: every method may be called from any thread; none except
    connect() blocks for longer than posting takes. Invariants: offsets are relative to the region
    and checked on both sides before anything is posted. A notification is seen by the peer only
    after the bytes sent with it.
    """

    @property
    @abstractmethod
    def settle_seconds(self) -> float:
        """Return the longest time from a writer's death, or from sever(), until its last bytes
        reach this node, in seconds. It covers the way from the peer's host, not this node's own
        delay."""

    @property
    @abstractmethod
    def retry_seconds(self) -> float:
        """Return the longest time from a post until its arrival, in seconds, if the writer lives
        but is cut off."""

    @property
    def poll_seconds(self) -> float:
        """Return the pause in seconds between calls of poll() and notifications() while events
        without a ring are awaited."""
        return 0.0005

    def ring_at_ends(self, bell: Bell) -> None:
        """Ring the bell from now on whenever a transfer to an endpoint with rings() has ended."""
        return None

    def rings(self, endpoint: "Endpoint") -> bool:
        """Return True if ends of transfers to it ring the wakeup event; poll() need not be called
        until then."""
        return False

    def ring_at_arrivals(self, bell: Bell) -> bool:
        """Ring the bell from now on while notifications() would return any. Return True if all of
        them ring; if not, the caller also polls, poll_seconds apart."""
        return False

    @property
    def libraries(self) -> Mapping[str, str]:
        """Return the versions of the libraries for metadata and wire, by their contract names. Both
        nodes must have the same."""
        return {}

    def expect_peers(self) -> None:
        """Prepare for the first connect(), so it need not wait; return at once. Raises
        TransportError."""
        return None

    @abstractmethod
    def register(self, address: int, size: int, units: TransferUnits | None = None) -> Region:
        """Make the arena known to the transport. Call once, before metadata() and connect().

        units: usual parts of segments, here and at every peer, to be prepared; None: nothing is
        prepared.
        """

    def register_ranks(self, arenas: "Sequence[RankMemory]", size: int, stride: int) -> Region:
        """Register as register() does, but arenas of `size` bytes anywhere in memory, `stride`
        apart in the region. Raises TransportError if the transport needs one arena."""
        raise TransportError(
            "ranks with a GPU each are written between by peer_copy alone: give --transport "
            "peer_copy, with both nodes on one host"
        )

    @abstractmethod
    def metadata(self) -> bytes:
        """Return the data for a peer's connect(); sent only over the control connection."""

    @abstractmethod
    def connect(self, metadata: bytes) -> Endpoint:
        """Open an endpoint; blocks for seconds if the peer is new. Raises TransportError if this
        transport cannot reach the peer. Raises its subclass MetadataUnusable if the metadata would
        harm this process."""

    @abstractmethod
    def post(self, endpoint: Endpoint, segments: Segments, notification: bytes) -> Transfer:
        """Start writing; an empty list of segments sends the notification alone.

        Raises OutOfBounds before anything is sent, TransportError if it could not be started.
        """

    def post_all(
        self, endpoint: Endpoint, writes: "Sequence[Write]"
    ) -> "list[Transfer | Exception]":
        """Call post() for each, in order; a failed one gives its error in place of a transfer.
        Raises nothing, because the caller must know of every write possibly arriving. Some
        transports write all of them together, and they are flushed together."""
        posted: list[Transfer | Exception] = []
        for write in writes:
            try:
                posted.append(self.post(endpoint, write.segments, write.notification))
            except Exception as error:
                posted.append(error)
        return posted

    def holds(self, endpoint: Endpoint) -> bool:
        """Return True if hold() works for the endpoint."""
        return False

    def hold(
        self, endpoint: Endpoint, writes: "Sequence[HeldWrite]", holding: Holding
    ) -> "list[HeldTransfer | Exception]":
        """Post as post_all() does, but each write at its tick, without a thread of the interpreter.
        REQUIRES: holds(endpoint)."""
        raise NotImplementedError

    def cancel(self, transfer: HeldTransfer) -> None:
        """Cancel the post if it has not happened yet; the transfer ends in any case."""
        raise NotImplementedError

    @abstractmethod
    def poll(self, transfer: Transfer) -> TransferState:
        """Return the transfer's state. DONE: flushed to the peer's memory. Raises TransportError if
        it failed."""

    @abstractmethod
    def release(self, transfer: Transfer) -> None:
        """Release the handle; a pending transfer is cancelled as far as possible."""

    @abstractmethod
    def notifications(self) -> list[bytes]:
        """Return the notifications of peers' finished transfers since the last call.

        A receiver calls it again and again, also while it expects nothing. Some transports move
        their peers' bytes into this node's memory only inside this call and poll().
        """

    @abstractmethod
    def sever(self) -> None:
        """Break every connection with writes of peers to this node, so bytes posted but not
        received never arrive. Once unread() is 0 no more arrive.

        Live peers see their transfers fail and connect anew.
        """

    def sever_dead(self) -> int:
        """Break as sever() does, but only connections of peers on this host with a dead process.
        Return the number of broken connections; 0 if a death already ends a connection with all its
        bytes."""
        return 0

    def unread(self) -> int:
        """Return the bytes brought by severed connections and not yet moved by notifications().
        Bytes received before the break still arrive. 0 if none wait on this side."""
        return 0

    @abstractmethod
    def disconnect(self, endpoint: Endpoint) -> None:
        """Close the endpoint. Idempotent. Transfers still pending on it may fail."""

    @abstractmethod
    def close(self) -> None:
        """Release endpoints and registrations. Idempotent. REQUIRES: nothing is posted after it."""


_BUSY_SECONDS = 50e-6
"""Processor time of a call above that of an empty call, in seconds, as a sign of moved bytes. A
core copies 200 KB in it."""
_FIRST_SECONDS = 50e-6


class PollBackoff:
    """Wait between two calls of a transport while an event is awaited from it.

    Some transports move bytes only inside such calls (base.py); between two of them a socket fills
    and the peer stalls. So after a call with moved bytes there is no wait. After other calls the
    wait begins short and doubles. Moved bytes are detected by the thread's processor time; clock
    time would also count waits for a lock or a core. Owns the next wait. Knows no transport. Thread
    rule: one thread, the calling one.
    """

    def __init__(self, processor_time: Clock = time.thread_time) -> None:
        self._processor_time = processor_time
        self._wait = _FIRST_SECONDS
        self._began = processor_time()

    def begin(self) -> None:
        """Note the start of the calls."""
        self._began = self._processor_time()

    def wait_seconds(self, most: float, calls: int = 1) -> float:
        """Return the seconds to wait, at most `most`, because the `calls` since begin() brought
        nothing."""
        if self._processor_time() - self._began >= calls * _BUSY_SECONDS:
            self.reset()
            return 0.0
        wait, self._wait = self._wait, min(2 * self._wait, most)
        return min(wait, most)

    def reset(self) -> None:
        """Start again with a short wait: an event came, and more may follow soon."""
        self._wait = _FIRST_SECONDS
