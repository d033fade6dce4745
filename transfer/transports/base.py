"""The interface of a transport, and the pace of polling one.

Thread rule: every method of a transport may be called from any thread. None but connect() blocks
for longer than posting takes.
"""

import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from tasuki.pycache._cpp_cache import AskedDigest, Bell, GpuDigester, StepCounter, WriteLease
from tasuki.transfer.errors import TransportError
from tasuki.transfer.windows.descriptors import Pieces, TransferUnits
from tasuki.transfer.windows.digest import ArenaWindow
from tasuki.utils.signatures import Clock


@dataclass(frozen=True)
class Region:
    """The one allocation that a node sends from and receives into: its arena, bytes [address,
    address + size)."""

    address: int
    size: int


@dataclass(frozen=True)
class RankMemory:
    """A rank's arena on its GPU. address: in this process. handle: what another process maps its
    allocation by, in which it lies at `offset`; gpu: the UUID of its GPU."""

    address: int
    handle: bytes
    offset: int
    gpu: str


class TransferState(Enum):
    """DROPPED: held, and nothing of it was posted, as was asked."""

    PENDING = "pending"
    DONE = "done"
    DROPPED = "dropped"


class Endpoint(ABC):
    """A connected peer."""

    @property
    @abstractmethod
    def remote_size(self) -> int:
        """Bytes of the peer's region."""


class Transfer:
    """A posted transfer; released exactly once, by Transport.release."""

    @property
    def posted_at(self) -> float | None:
        """When the transport posted it, on the monotonic clock; None where it has not, or where
        post() did."""
        return None

    @property
    def ended_at(self) -> float | None:
        """When it ended, on the monotonic clock; None where it has not, or where only whoever polls
        sees it."""
        return None


class HeldTransfer(Transfer, ABC):
    """What is posted once its tick has come, and digested from then on."""

    @property
    @abstractmethod
    def digest(self) -> AskedDigest: ...


@dataclass(frozen=True)
class Write:
    """What one post() takes."""

    pieces: Pieces
    notification: bytes


@dataclass(frozen=True)
class HeldWrite:
    """tick: from which on it may be posted. window: as it lies here, for its digest."""

    write: Write
    tick: int
    window: ArenaWindow


@dataclass(frozen=True)
class Holding:
    """Of what is held together. lease: what is held is posted only while it holds. digester: of
    what leaves; a GPU's."""

    steps: StepCounter
    lease: WriteLease
    digester: GpuDigester


class Transport(ABC):
    """The interface of a transport: one-sided writes into one registered region of a peer, with
    notifications.

    A transport knows bytes and offsets; it knows no layers, pages, rooms or leases. Liveness,
    generations and fences are its callers': a finished transfer says "flushed", never "the peer is
    alive" or "wanted it". Thread rule: every method may be called from any thread; none but
    connect() blocks for longer than posting takes. Invariants: offsets are relative to the region
    and checked on both sides before anything is posted; a notification is seen by the peer only
    after the bytes that it rides with.
    """

    @property
    @abstractmethod
    def settle_seconds(self) -> float:
        """How long after its writer's death, or after sever(), this node may learn of more of
        what was written: the way from the peer's host, not the time that this node takes."""

    @property
    @abstractmethod
    def retry_seconds(self) -> float:
        """How long after it was posted a write may still land while its writer lives but is cut
        off."""

    @property
    def poll_seconds(self) -> float:
        """How often poll() and notifications() are worth calling while something is awaited that
        does not ring."""
        return 0.0005

    def ring_at_ends(self, bell: Bell) -> None:
        """Ring it from now on whenever a transfer to an endpoint that rings() has ended."""
        return None

    def rings(self, endpoint: "Endpoint") -> bool:
        """Whether ends of transfers to it ring, so that poll() need not be called until then."""
        return False

    def ring_at_arrivals(self, bell: Bell) -> bool:
        """Ring it from now on while notifications() would give any; whether that is true of all of
        them: if not, it is called again and again as well, poll_seconds apart."""
        return False

    @property
    def libraries(self) -> Mapping[str, str]:
        """Versions of what writes the metadata and the wire, by the contract's names of them: both
        nodes must have the same."""
        return {}

    def expect_peers(self) -> None:
        """Make ready what the first connect() needs, so that it need not wait; returns at once.
        Raises TransportError."""
        return None

    @abstractmethod
    def register(self, address: int, size: int, units: TransferUnits | None = None) -> Region:
        """Make the arena known to the transport. Once, before metadata() and connect().

        units: what pieces will mostly be made of, here and at every peer, so that it can be
        prepared; without it nothing is.
        """

    def register_ranks(self, arenas: "Sequence[RankMemory]", size: int, stride: int) -> Region:
        """As register(), of arenas of `size` bytes that are `stride` apart in the region and
        anywhere in memory. Raises TransportError where there must be one."""
        raise TransportError(
            "ranks with a GPU each are written between by peer_copy alone: give --transport "
            "peer_copy, with both nodes on one host"
        )

    @abstractmethod
    def metadata(self) -> bytes:
        """What a peer needs for connect(); travels only over the control connection."""

    @abstractmethod
    def connect(self, metadata: bytes) -> Endpoint:
        """Blocks for seconds where the peer is new. Raises TransportError when the peer cannot be
        reached by this transport, and MetadataUnusable, one of them, where its metadata would harm
        this process."""

    @abstractmethod
    def post(self, endpoint: Endpoint, pieces: Pieces, notification: bytes) -> Transfer:
        """Start writing; an empty list of pieces sends the notification alone.

        Raises OutOfBounds before anything is sent, TransportError when it could not be started.
        """

    def post_all(
        self, endpoint: Endpoint, writes: "Sequence[Write]"
    ) -> "list[Transfer | Exception]":
        """post() of each, in order; for what could not be started, what post() raised. Raises
        nothing: who posts must know of everything that may land. Some transports write all of them
        in one go, so that they are flushed together."""
        posted: list[Transfer | Exception] = []
        for write in writes:
            try:
                posted.append(self.post(endpoint, write.pieces, write.notification))
            except Exception as error:
                posted.append(error)
        return posted

    def holds(self, endpoint: Endpoint) -> bool:
        """Whether hold() is there for it."""
        return False

    def hold(
        self, endpoint: Endpoint, writes: "Sequence[HeldWrite]", holding: Holding
    ) -> "list[HeldTransfer | Exception]":
        """post_all(), of each once its tick has come, without any of the interpreter's threads.
        REQUIRES: holds(endpoint)."""
        raise NotImplementedError

    def cancel(self, transfer: HeldTransfer) -> None:
        """Post it no more, if it was not yet: it ends all the same."""
        raise NotImplementedError

    @abstractmethod
    def poll(self, transfer: Transfer) -> TransferState:
        """DONE: flushed, the peer's memory has it. Raises TransportError when it failed."""

    @abstractmethod
    def release(self, transfer: Transfer) -> None:
        """Let go of the handle; of a pending transfer too, which is then cancelled as far as
        possible."""

    @abstractmethod
    def notifications(self) -> list[bytes]:
        """What peers' finished transfers have said since the last call.

        A receiver calls it again and again, also while it expects nothing: some transports move
        their peers' bytes into this node's memory only inside this call and poll().
        """

    @abstractmethod
    def sever(self) -> None:
        """Break every connection over which peers write here, so that what a peer posted and this
        node has not received never lands; once unread() is 0 nothing more does.

        Peers that live see their transfers fail and connect anew.
        """

    def sever_dead(self) -> int:
        """The same for peers of this host whose process is dead, and for no other. How many
        connections were broken: 0 where a death ends a connection with all that it carried."""
        return 0

    def unread(self) -> int:
        """Bytes that severed connections have brought and notifications() has yet to move: what
        was received before they broke still lands. 0 where nothing waits on this side."""
        return 0

    @abstractmethod
    def disconnect(self, endpoint: Endpoint) -> None:
        """Idempotent. Transfers still pending on the endpoint may fail."""

    @abstractmethod
    def close(self) -> None:
        """Idempotent. Lets go of endpoints and registrations; REQUIRES: nothing is posted after
        it."""


_BUSY_SECONDS = 50e-6
"""Of processor time, more than a call takes that moves nothing; a core copies 200 KB in it."""
_FIRST_SECONDS = 50e-6


class PollBackoff:
    """How long to wait until a transport is asked again, while something is awaited from it.

    Some transports move bytes only inside such calls (base.py), and between two of them a socket
    fills and the peer stands still. So after a call that moved some there is no wait; after one
    that did not it begins short and doubles. What moved is known by the processor time that the
    thread spent: time on the clock would count waits for a lock or a core too. Owns the next wait.
    Knows no transport. Thread rule: one thread, the one that calls.
    """

    def __init__(self, processor_time: Clock = time.thread_time) -> None:
        self._processor_time = processor_time
        self._wait = _FIRST_SECONDS
        self._began = processor_time()

    def begin(self) -> None:
        """The calls begin."""
        self._began = self._processor_time()

    def wait_seconds(self, most: float, calls: int = 1) -> float:
        """The `calls` since begin() have brought nothing: until they are worth repeating, at most
        `most`."""
        if self._processor_time() - self._began >= calls * _BUSY_SECONDS:
            self.reset()
            return 0.0
        wait, self._wait = self._wait, min(2 * self._wait, most)
        return min(wait, most)

    def reset(self) -> None:
        """Something came: more may follow soon."""
        self._wait = _FIRST_SECONDS
