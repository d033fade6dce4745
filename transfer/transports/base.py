"""Interface of a transport, and the wait between two polls of one.

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
    """Registered memory of a node: its arena, bytes [address, address + size)."""

    address: int
    size: int


@dataclass(frozen=True)
class RankMemory:
    """One rank's arena on its GPU. address: its address in this process. handle: CUDA handle to map
    its allocation in another process. offset: byte offset of the arena in this allocation. gpu:
    UUID of its GPU."""

    address: int
    handle: bytes
    offset: int
    gpu: str


class TransferState(Enum):
    """State of a posted write. DROPPED: held back by the transport, and never posted."""

    PENDING = "pending"
    DONE = "done"
    DROPPED = "dropped"


class Endpoint(ABC):
    """Endpoint of a connected peer, for writing into its registered region."""

    @property
    @abstractmethod
    def remote_size(self) -> int:
        """Return the size in bytes of the peer's registered region."""


class Transfer:
    """Posted write to a peer; released exactly once, by Transport.release."""

    @property
    def posted_at(self) -> float | None:
        """Return the time when the transport posted this write by itself, on the monotonic clock;
        None if it has not, or if the caller posted it."""
        return None

    @property
    def ended_at(self) -> float | None:
        """Return the time when this write ended, on the monotonic clock; None if it has not, or if
        only poll() can see it."""
        return None


class HeldTransfer(Transfer, ABC):
    """Write held by the transport until its layers are finished, then posted and digested."""

    @property
    @abstractmethod
    def digest(self) -> AskedDigest: ...


@dataclass(frozen=True)
class Write:
    """Arguments of one post(): the segments to write, and the notification sent after them."""

    segments: Segments
    notification: bytes


@dataclass(frozen=True)
class HeldWrite:
    """Write to be held until its layers are finished. tick: the step counter's value from which on
    it may be posted. chunk: its place in this node's arena, for its digest."""

    write: Write
    tick: int
    chunk: ArenaChunk


@dataclass(frozen=True)
class Holding:
    """Conditions of writes held together. steps: counter of finished layers. lease: a held write is
    posted only while this lease is valid. digester: GPU digester for the sent bytes."""

    steps: StepCounter
    lease: WriteLease
    digester: GpuDigester


class Transport(ABC):
    """Interface of a transport: one-sided writes into one registered region of a peer, with
    notifications.

    A transport knows bytes and offsets; it knows no layers, pages, leases or transfers of prompts.
    Its callers handle liveness, generations and fences: a finished write means "flushed", never
    "the peer is alive" or "the peer wanted it". Thread rule: every method may be called from any
    thread; none except connect() blocks for longer than posting takes. Invariants: offsets are
    relative to the region and checked on both sides before anything is posted. A notification is
    seen by the peer only after the bytes sent with it.
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
        """Return the longest time from a post until its arrival, in seconds, for a live writer with
        a cut network."""

    @property
    def poll_seconds(self) -> float:
        """Return the pause in seconds between calls of poll() and notifications(), while awaited
        events ring no bell."""
        return 0.0005

    def ring_at_ends(self, bell: Bell) -> None:
        """Ring the bell (wake its waiting thread) from now on whenever a write to an endpoint has
        ended. Endpoints with rings() False are left out."""
        return None

    def rings(self, endpoint: "Endpoint") -> bool:
        """Return True if the end of each write to this endpoint rings the bell; poll() need not be
        called until then."""
        return False

    def ring_at_arrivals(self, bell: Bell) -> bool:
        """Ring the bell from now on while notifications() would return any. Return True if every
        notification rings. If False, the caller also polls, poll_seconds apart."""
        return False

    @property
    def libraries(self) -> Mapping[str, str]:
        """Return the versions of the libraries used for metadata and wire, by their contract field.
        Both nodes must have the same."""
        return {}

    def expect_peers(self) -> None:
        """Begin preparing for the first connect(), so it need not wait; return without waiting.
        Raises TransportError."""
        return None

    @abstractmethod
    def register(self, address: int, size: int, units: TransferUnits | None = None) -> Region:
        """Register the arena with the transport. Call it once, before metadata() and connect().

        units: usual parts of segments in every node's arena, to be prepared for posting by index;
        None: nothing is prepared.
        """

    def register_ranks(self, arenas: "Sequence[RankMemory]", size: int, stride: int) -> Region:
        """Register the arenas of several ranks, as register() does for one. They have `size` bytes
        each, and may be anywhere in memory. stride: distance of their beginnings in the region, in
        bytes. Raises TransportError if the transport supports only one arena."""
        raise TransportError(
            "ranks with a GPU each are written between by peer_copy alone: give --transport "
            "peer_copy, with both nodes on one host"
        )

    @abstractmethod
    def metadata(self) -> bytes:
        """Return a peer's data for connect(); only the control connection sends them."""

    @abstractmethod
    def connect(self, metadata: bytes) -> Endpoint:
        """Open an endpoint to the peer with this metadata; blocks for seconds if the peer is new.
        Raises TransportError if this transport cannot reach the peer. Raises its subclass
        MetadataUnusable if the metadata would harm this process."""

    @abstractmethod
    def post(self, endpoint: Endpoint, segments: Segments, notification: bytes) -> Transfer:
        """Start writing the segments, then the notification; an empty list of segments sends the
        notification alone.

        Raises OutOfBounds before anything is sent, TransportError if the write could not be
        started.
        """

    def post_all(
        self, endpoint: Endpoint, writes: "Sequence[Write]"
    ) -> "list[Transfer | Exception]":
        """Call post() for each write, in order; a failed one returns its error in place of a
        transfer. Raises nothing, because the caller must know of every write possibly arriving.
        Some transports write and flush all of them together."""
        posted: list[Transfer | Exception] = []
        for write in writes:
            try:
                posted.append(self.post(endpoint, write.segments, write.notification))
            except Exception as error:
                posted.append(error)
        return posted

    def holds(self, endpoint: Endpoint) -> bool:
        """Return True if hold() can be used for the endpoint."""
        return False

    def hold(
        self, endpoint: Endpoint, writes: "Sequence[HeldWrite]", holding: Holding
    ) -> "list[HeldTransfer | Exception]":
        """Post like post_all(), but each write once its layers are finished, without a thread of
        the interpreter. REQUIRES: holds(endpoint)."""
        raise NotImplementedError

    def cancel(self, transfer: HeldTransfer) -> None:
        """Cancel a held write if it is not posted yet; in any case the write ends."""
        raise NotImplementedError

    @abstractmethod
    def poll(self, transfer: Transfer) -> TransferState:
        """Return the write's state. DONE: flushed to the peer's memory. Raises TransportError if it
        failed."""

    @abstractmethod
    def release(self, transfer: Transfer) -> None:
        """Release the handle of a posted write; a pending write is cancelled as far as possible."""

    @abstractmethod
    def notifications(self) -> list[bytes]:
        """Return the notifications of peers' finished writes since the last call.

        A receiver calls it again and again, also while it expects nothing. Some transports move
        their peers' bytes into this node's memory only inside this call and poll().
        """

    @abstractmethod
    def sever(self) -> None:
        """Break every connection with writes of peers to this node. Bytes posted but not received
        then never arrive. Once unread() is 0 no more arrive.

        Live peers see their writes fail and connect again.
        """

    def sever_dead(self) -> int:
        """Break connections like sever(), but only those of peers on this host with a dead process.
        Return the number of broken connections; 0 if a death already ends a connection with all its
        bytes."""
        return 0

    def unread(self) -> int:
        """Return the bytes received from severed connections and not yet moved into the arena by
        notifications(). Bytes received before the break still arrive. 0 if no bytes wait on this
        node."""
        return 0

    @abstractmethod
    def disconnect(self, endpoint: Endpoint) -> None:
        """Close the endpoint. Idempotent. Pending writes to it may fail."""

    @abstractmethod
    def close(self) -> None:
        """Release all endpoints and registrations. Idempotent. REQUIRES: nothing is posted after
        it."""


_BUSY_SECONDS = 50e-6
"""Processor time of one call, in seconds, above the time of an empty call: from here on it must
have moved bytes. A core copies 200 KB in it."""
_FIRST_SECONDS = 50e-6


class PollBackoff:
    """Wait between two polls of a transport, while an event is awaited from it.

    Some transports move bytes only inside such calls; between two of them a socket fills and the
    peer stalls. So after a call with moved bytes there is no wait. After other calls the wait
    begins short and doubles. Moved bytes are detected by the thread's processor time; clock time
    would also count waits for a lock or a core. Owns the length of the next wait. Knows no
    transport. Thread rule: one thread, the calling one.
    """

    def __init__(self, processor_time: Clock = time.thread_time) -> None:
        self._processor_time = processor_time
        self._wait = _FIRST_SECONDS
        self._began = processor_time()

    def begin(self) -> None:
        """Record the thread's processor time before the calls of a poll."""
        self._began = self._processor_time()

    def wait_seconds(self, most: float, calls: int = 1) -> float:
        """Return the seconds to wait, at most `most`, after the calls since begin() showed no
        event. calls: their number."""
        if self._processor_time() - self._began >= calls * _BUSY_SECONDS:
            self.reset()
            return 0.0
        wait, self._wait = self._wait, min(2 * self._wait, most)
        return min(wait, most)

    def reset(self) -> None:
        """Begin again with a short wait: an event came, and more may follow soon."""
        self._wait = _FIRST_SECONDS
