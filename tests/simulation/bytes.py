"""Memory of simulated nodes: the owner and content of each page or slot id, and the writes in
flight.

A write outside its destination is a violation, and so is a read of an id not held. Each is found at
once.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import inf

from tasuki.transfer.chunks.chunk import ChunkHeader, Destination
from tasuki.transfer.errors import DuplicateTransfer, OutOfBounds, TransferError
from tasuki.transfer.lifecycle import events as on
from tasuki.transfer.reports import ChunkDigest, ChunkTiming, Drain, SendReport
from tasuki.transfer.sending.link import WriteLeases

from .world import Fault, Node, Violation, World

LEASE, RETRY, SETTLE = 4.0, 1.0, 0.05
STALL, DRAIN = 5.0, 2.0
_SWEEP = 0.5
_HANGS, DRAIN_DEADLINE = 0.03, 10.0
"""Probability of a far too late answer to an abort of a transfer's writes, and the deadline of such
a drain in seconds."""
Owner = tuple[str, int]
FREE: Owner = ("free", 0)


class Arena:
    """The page and slot ids of a node's memory. Invariant: each id has one owner, and only an
    owner's writer writes to it."""

    def __init__(self, ids: int) -> None:
        self.owners: list[Owner] = [FREE] * ids
        self.content: list[object] = [None] * ids
        self._free = list(range(ids))
        self._readers = [0] * ids

    @property
    def free(self) -> int:
        return len(self._free)

    def take(self, count: int, owner: Owner) -> tuple[int, ...] | None:
        """Allocate `count` ids for an owner; return None if fewer are free."""
        if len(self._free) < count:
            return None
        ids = tuple(self._free.pop(0) for _ in range(count))
        for each in ids:
            self.owners[each], self.content[each] = owner, None
        return ids

    def give_back(self, ids: Sequence[int], owner: Owner) -> None:
        for each in ids:
            if self.owners[each] != owner:
                raise Violation(f"id {each} is freed by {owner}, and is of {self.owners[each]}")
            if self._readers[each]:
                raise Violation(f"id {each} of {owner} is freed while it is sent")
            self.owners[each] = FREE
            self._free.append(each)

    def pass_on(self, ids: Sequence[int], before: Owner, after: Owner) -> None:
        for each in ids:
            if self.owners[each] != before:
                raise Violation(f"id {each} of {before} is of {self.owners[each]}")
            self.owners[each] = after

    def read(self, ids: Sequence[int], reads: int) -> None:
        """Count readers of the ids: reads is 1 at a read's start and -1 at its end."""
        for each in ids:
            self._readers[each] += reads


@dataclass
class Write:
    """The write of a layer chunk in flight. owner: owner of the ids at the receiver."""

    transfer_id: int
    generation: int
    header: ChunkHeader
    ids: tuple[int, ...]
    content: object
    writer: Node
    life: int
    flushed: Callable[[], None]
    broken: bool = False


class Arrivals:
    """The receiving half of a node's data plane. Its peer's writes arrive here."""

    def __init__(self, node: Node, arena: Arena) -> None:
        self.node = node
        self.arena = arena
        self.flying: dict[int, Write] = {}
        self._transfers: dict[int, _Expected] = {}
        self._writes = 0

    def expect(self, transfer_id: int, generation: int, destination: Destination) -> None:
        ids = _ids_of(destination)
        if any(not 0 <= each < len(self.arena.owners) for each in ids):
            raise OutOfBounds("an id is outside the arena")
        if transfer_id in self._transfers:
            raise DuplicateTransfer(f"transfer {transfer_id} is expected already")
        self._transfers[transfer_id] = _Expected(generation, ids)

    def forget(self, transfer_id: int) -> None:
        self._transfers.pop(transfer_id, None)

    def arrived(self, transfer_id: int) -> int:
        expected = self._transfers.get(transfer_id)
        return 0 if expected is None else len(expected.arrived)

    def verify(
        self, transfer_id: int, generation: int, sent: Sequence[ChunkDigest]
    ) -> on.Verified | None:
        """Compare a transfer's sent digests with the arrived layer chunks. Returns None while layer
        chunks are missing."""
        expected = self._transfers.get(transfer_id)
        if expected is None or expected.generation != generation:
            return on.Verified("it is not expected")
        if any(chunk.header.sequence not in expected.arrived for chunk in sent):
            return None
        if any(expected.arrived[chunk.header.sequence] != chunk.digest for chunk in sent):
            return on.Verified("a digest differs", differs=True)
        if len(sent) != len(expected.arrived):
            return on.Verified("more landed than was sent", differs=True)
        filled = {each for chunk in sent for each in expected.filled[chunk.header.sequence]}
        if filled != set(expected.ids):
            return on.Verified("not all was sent")
        return on.Verified()

    def fly(self, write: Write, seconds: float, is_announced: bool) -> None:
        """Send a write. It arrives after `seconds`, unless its connection is severed before.
        is_announced: False if its notification is lost."""
        self._writes += 1
        number, life = self._writes, self.node.life
        self.flying[number] = write
        self.node.world.after(seconds, lambda: self._arrive(number, life, is_announced))

    def _arrive(self, number: int, life: int, is_announced: bool) -> None:
        write = self.flying.pop(number, None)
        if write is None or self.node.life != life:
            return
        for each in write.ids:
            owner = self.arena.owners[each]
            if owner not in (
                (kind, write.transfer_id) for kind in ("granted", "quarantined", "pull")
            ):
                raise Violation(
                    f"a write of transfer {write.transfer_id} lands in an id of {owner}"
                )
            self.arena.content[each] = write.content
        if is_announced:
            self.node.take(self.node.world.now, lambda: self._announced(write))
        if not write.writer.is_dead and write.writer.life == write.life:
            write.writer.take(self.node.world.now + 0.0005, write.flushed)

    def _announced(self, write: Write) -> None:
        expected = self._transfers.get(write.transfer_id)
        if expected is None or expected.generation != write.generation:
            return
        expected.arrived[write.header.sequence] = hash(write.content)
        expected.filled[write.header.sequence] = write.ids

    def sever(self, only_dead: bool) -> None:
        """Drop writes in flight, so they never arrive. only_dead: True drops only those of dead
        writers."""
        for number, write in list(self.flying.items()):
            is_dead = write.writer.is_dead or write.writer.life != write.life
            if is_dead or not only_dead:
                del self.flying[number]


@dataclass
class _Expected:
    generation: int
    ids: tuple[int, ...]
    arrived: dict[int, int] = field(default_factory=dict)
    filled: dict[int, tuple[int, ...]] = field(default_factory=dict)


def _ids_of(destination: Destination) -> tuple[int, ...]:
    slot = () if destination.slot is None else (destination.slot,)
    return (*destination.pages, *slot)


@dataclass
class _Outgoing:
    transfer_id: int
    generation: int
    peer: str
    ids: tuple[int, ...]
    on_end: Callable[[on.Event], None]
    source: tuple[int, ...] = ()
    waiting: list[ChunkHeader] = field(default_factory=list)
    posted: int = 0
    moved: float = 0.0
    planned: bool = False
    stopped_at: float = inf
    reason: str = ""
    endpoint_failed: bool = False
    write_lost: bool = False
    aborted: Callable[[Drain], None] | None = None
    drains: float = DRAIN
    """Seconds until this transfer's drain times out."""
    digests: list[ChunkDigest] = field(default_factory=list)
    progress: int = 0


class Leaving:
    """The sending half of a node's data plane: layer chunks of transfers, written under the peer's
    lease."""

    def __init__(
        self,
        node: Node,
        arena: Arena,
        to: Callable[[str], Arrivals | None],
        fault_of: Callable[[int], Fault | None],
    ) -> None:
        """Set up the sender. arena: the node's memory. to: returns the receiving half at the other
        end of a connection. fault_of: returns the fault of a transfer's next layer chunk."""
        self.node = node
        self.leases = WriteLeases(LEASE, node.clock)
        self.transfers: dict[int, _Outgoing] = {}
        self._arena = arena
        self._to = to
        self._fault_of = fault_of
        self._forced: set[tuple[str, int]] = set()
        self._sweeps = False

    @property
    def _world(self) -> World:
        return self.node.world

    def open(
        self,
        transfer_id: int,
        generation: int,
        peer: str,
        destination: Destination,
        on_end: Callable[[on.Event], None],
    ) -> None:
        if self.leases.peer(peer) is None:
            raise TransferError(f"no connection {peer}")
        if transfer_id in self.transfers or (peer, transfer_id) in self._forced:
            raise DuplicateTransfer(f"transfer {transfer_id} is open already")
        ids = _ids_of(destination)
        if any(each >= len(self._arena.owners) for each in ids):
            raise OutOfBounds("an id is outside the arena")
        self.transfers[transfer_id] = _Outgoing(
            transfer_id, generation, peer, ids, on_end, moved=self.node.clock()
        )
        self._sweep_later()

    def plan(self, transfer_id: int, source: tuple[int, ...]) -> None:
        """Plan all layer chunks of a transfer, one for each source id. Without ids it is one chunk
        without bytes."""
        out = self.transfers.get(transfer_id)
        if out is None or out.planned or out.stopped_at < inf:
            return
        count = max(1, len(out.ids))
        out.planned, out.source = True, source
        out.waiting = [ChunkHeader(k, k, k + 1, k, 1, k == count - 1) for k in range(count)]
        self._arena.read(source, 1)
        self._post_later(out)

    def _post_later(self, out: _Outgoing) -> None:
        self.node.after(0.004 * self._world.random.random(), lambda: self._post(out))

    def _post(self, out: _Outgoing) -> None:
        if (
            out.stopped_at < inf
            or not out.waiting
            or self.transfers.get(out.transfer_id) is not out
        ):
            return
        if self.leases.writable(out.peer) is None:
            self._stop(out, "not renewed by the receiver")
            return
        header = out.waiting.pop(0)
        landing = self._to(out.peer)
        fault = self._fault_of(out.transfer_id)
        out.posted += 1
        out.progress += 1
        out.moved = self.node.clock()
        if landing is None or fault is Fault.BROKEN_WRITE:
            out.posted -= 1
            out.endpoint_failed = out.write_lost = True
            if landing is not None:
                self._fly(landing, out, header, self._world.between(0.01, 0.9), True)
            self._stop(out, "the transfer broke")
            return
        seconds = 0.001 + 0.003 * self._world.random.random()
        if fault is Fault.LATE_WRITE:
            seconds = self._world.between(0.5, self._world.random.choice((4.0, 4.0, 30.0)))
        self._fly(landing, out, header, seconds, fault is not Fault.CHUNK_LOST, fault)
        if out.waiting:
            self._post_later(out)

    def _fly(
        self,
        landing: Arrivals,
        out: _Outgoing,
        header: ChunkHeader,
        seconds: float,
        is_announced: bool,
        fault: Fault | None = None,
    ) -> None:
        ids = out.ids[header.first_page : header.first_page + 1]
        content: object = (out.transfer_id, out.generation, header.sequence)
        digest = hash(content)
        if fault is Fault.FLIP:
            content = (*content, "flipped") if isinstance(content, tuple) else content
        node = self.node
        flushed = _Flushed(self, out, header, digest)
        write = Write(
            out.transfer_id, out.generation, header, ids, content, node, node.life, flushed
        )
        landing.fly(write, seconds, is_announced)

    def flushed(self, out: _Outgoing, header: ChunkHeader, digest: int) -> None:
        if self.transfers.get(out.transfer_id) is not out:
            return
        out.posted -= 1
        out.progress += 1
        out.moved = self.node.clock()
        out.digests.append(ChunkDigest(header, digest))
        self._end_if_over(out)

    def progress(self, transfer_id: int) -> int:
        out = self.transfers.get(transfer_id)
        return 0 if out is None else out.progress

    def abort(self, transfer_id: int, peer: str, drained: Callable[[Drain], None]) -> None:
        out = self.transfers.get(transfer_id)
        if out is None or out.peer != peer:
            drained(Drain.FORCED if (peer, transfer_id) in self._forced else Drain.DRAINED)
            return
        out.aborted = drained
        if self._world.random.random() < _HANGS:
            out.drains = 3 * DRAIN_DEADLINE
        self._stop(out, "aborted")

    def disconnect(self, peer: str) -> None:
        self.leases.remove(peer)
        for out in list(self.transfers.values()):
            if out.peer == peer:
                self._stop(out, "the connection to the receiver is over")

    def _stop(self, out: _Outgoing, reason: str) -> None:
        if out.stopped_at == inf:
            out.stopped_at, out.reason = self.node.clock(), reason
            out.waiting.clear()
        self._end_if_over(out)

    def _sweep_later(self) -> None:
        if not self._sweeps:
            self._sweeps = True
            self.node.after(_SWEEP, self._sweep)

    def _sweep(self) -> None:
        """Stop transfers with an expired lease or without progress, and end overlong drains."""
        self._sweeps = False
        now = self.node.clock()
        for out in list(self.transfers.values()):
            if out.stopped_at == inf and self.leases.writable(out.peer) is None:
                self._stop(out, "not renewed by the receiver")
            elif out.stopped_at == inf and out.posted and now - out.moved > STALL:
                self._stop(out, "no window was flushed")
            else:
                self._end_if_over(out)
        if self.transfers:
            self._sweep_later()

    def _end_if_over(self, out: _Outgoing) -> None:
        if self.transfers.get(out.transfer_id) is not out:
            return
        is_late = self.node.clock() - out.stopped_at > out.drains
        if out.stopped_at == inf:
            if out.planned and not out.waiting and not out.posted:
                self._close(out)
                out.on_end(on.Sent(_report(out)))
            return
        hangs = out.drains > DRAIN
        if (out.posted or hangs) and not is_late:
            return
        drain = Drain.FORCED if out.posted or out.write_lost else Drain.DRAINED
        if drain is Drain.FORCED:
            self._forced.add((out.peer, out.transfer_id))
        self._close(out)
        if out.aborted is not None:
            out.aborted(drain)
        else:
            out.on_end(on.SendBroke(out.reason, drain, out.endpoint_failed))

    def let_go(self, transfer_id: int) -> None:
        """Free a transfer's source ids, because the engine no longer waits for a drain without
        end."""
        out = self.transfers.get(transfer_id)
        if out is not None:
            self._arena.read(out.source, -1)
            out.source = ()

    def _close(self, out: _Outgoing) -> None:
        del self.transfers[out.transfer_id]
        self._arena.read(out.source, -1)


@dataclass
class _Flushed:
    leaving: Leaving
    out: _Outgoing
    header: ChunkHeader
    digest: int

    def __call__(self) -> None:
        self.leaving.flushed(self.out, self.header, self.digest)


def _report(out: _Outgoing) -> SendReport:
    timings = tuple(
        ChunkTiming(each.header.sequence, (0.0,), 0.0, 0.0, 0.0, 8) for each in out.digests
    )
    count = len(out.digests)
    return SendReport(8 * count, count, len(out.ids), 0.0, 0.0, tuple(out.digests), timings)
