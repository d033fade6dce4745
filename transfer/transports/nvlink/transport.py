"""Transport by a kernel storing into a peer GPU's memory, for processes and GPUs of one host.

Owns the export of this node's arena, its gate and mailbox, the mapped arenas of peers, and the
compiled writer (cpp_cache/dataplane/peer_writer.h). It launches kernels, watches them and notifies
without the interpreter's lock. Knows no layers or transfers. Thread rule: base.py's; one lock.

Invariants:
1. Nothing waits for the GPU except disconnect(), because it must not unmap memory still written by
   a kernel.
2. A notification is sent after the event behind the chunk's kernel was seen to have passed. Every
   program of the kernel has then released its stores at system scope.
3. A chunk is DONE only if every program found the peer's gate open.

Three things prove the end of writes. The first is the event of the last chunk (drain). The second
is the writer's death, because the driver ends its kernels before the process is gone. The third is
sever(), because it shuts the gate.
"""

import threading
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass

import numpy as np
import torch

from tasuki.pycache._cpp_cache import (
    AskedDigest,
    Bell,
    CudaContext,
    DigestQueue,
    GpuDigester,
    PeerEndpoint,
    PeerOutcome,
    PeerTransfer,
    PeerWriter,
    fill_piece_table,
    piece_table_words,
)
from tasuki.transfer.chunks.descriptors import Segments, Spread, TransferUnits, check_bounds
from tasuki.transfer.errors import OutOfBounds, TransportError
from tasuki.transfer.node_identity import ProcessIdentity
from tasuki.transfer.transports.base import (
    Endpoint,
    HeldTransfer,
    HeldWrite,
    Holding,
    RankMemory,
    Region,
    Transfer,
    TransferState,
    Transport,
    Write,
)
from tasuki.utils.triton.kernel_spec import kernel_handle

from .cuda_ipc import NOBODY, WORD_BYTES, CudaIpc, Export, PeerGate
from .peer_address import MailboxAddress, PeerAddress, PeerArena
from .store_kernel import ALIGNMENT, CHUNK_BYTES, Grid, Target, launch_store

# More than one program for each SM, even beside a forward: fewer programs for a longer time slow it
# as much (docs/hand-over.md).
_GRID = Grid(programs=264, turn=4)


@dataclass(eq=False)
class _PeerEndpoint(Endpoint):
    address: PeerAddress
    arenas: Spread
    gate: int
    peer: PeerEndpoint
    open: bool = True

    @property
    def remote_size(self) -> int:
        return self.arenas.region_bytes


@dataclass(eq=False)
class _PeerTransfer(Transfer):
    posted: PeerTransfer

    @property
    def ended_at(self) -> float | None:
        return self.posted.ended_at


class _PeerHeld(_PeerTransfer, HeldTransfer):
    @property
    def posted_at(self) -> float | None:
        return self.posted.posted_at

    @property
    def digest(self) -> AskedDigest:
        digest = self.posted.digest
        assert digest is not None
        return digest


class PeerCopyTransport(Transport):
    def __init__(self, device: torch.device) -> None:
        """device: GPU of the arena. Raises TransportError if its memory cannot be shared."""
        if device.type != "cuda":
            raise TransportError("peer_copy writes GPU memory: give --device cuda, or use nixl")
        index = torch.cuda.current_device() if device.index is None else device.index
        self._device = torch.device("cuda", index)
        self._ipc = CudaIpc(index)
        self._gate = PeerGate(self._ipc)
        self._mailbox_address = MailboxAddress.new()
        self._mailbox = self._mailbox_address.open()
        self._compiled = self._compile()
        self._lock = threading.Lock()
        self._arenas: Spread | None = None
        self._exported: tuple[PeerArena, ...] = ()
        self._writer: PeerWriter | None = None
        self._bells: list[Bell] = []
        """Bells rung when a notification arrives."""
        self._end_bells: list[Bell] = []
        self._digests: DigestQueue | None = None
        """Queue for the digests of held chunks, all sent from one arena; None before the first."""
        self._endpoints: list[_PeerEndpoint] = []
        self._closed = False

    def _compile(self) -> object:
        """Compile the store kernel by one launch with a shut gate, and return it."""
        table = np.zeros(piece_table_words(0), dtype=np.int64)
        flag = torch.zeros(1, dtype=torch.int32, pin_memory=True)
        own = self._gate.address
        fill_piece_table(table, np.empty((0, 3), dtype=np.int64), CHUNK_BYTES)
        with torch.cuda.device(self._device):
            compiled = launch_store(
                own,
                Target(own, own, NOBODY),
                torch.from_numpy(table).to(self._device),
                0,
                flag.data_ptr(),
                Grid(1, 1),
            )
            torch.cuda.synchronize()
        return compiled

    @property
    def settle_seconds(self) -> float:
        """Return the seconds for the last stores to arrive. A dead writer's kernels end with it; a
        live writer's kernels end sooner once the gate is shut."""
        return 0.1

    @property
    def retry_seconds(self) -> float:
        """Return the seconds until a posted kernel has ended: its stream waits for nothing."""
        return 0.5

    def ring_at_ends(self, bell: Bell) -> None:
        with self._lock:
            self._end_bells.append(bell)
            if self._writer is not None:
                self._writer.ring_at_ends(bell)
            if self._digests is not None:
                self._digests.ring_at_answers(bell)

    def rings(self, endpoint: Endpoint) -> bool:
        return True

    def ring_at_arrivals(self, bell: Bell) -> bool:
        with self._lock:
            if not self._closed:
                self._bells.append(bell)
                bell.watch(self._mailbox.descriptor)
        return True

    def register(self, address: int, size: int, units: TransferUnits | None = None) -> Region:
        # Rejected here, not by the first peer.
        export = self._ipc.export(address)
        own = RankMemory(address, export.handle, export.offset, _uuid(self._device.index))
        return self.register_ranks([own], size, size)

    def register_ranks(self, arenas: Sequence[RankMemory], size: int, stride: int) -> Region:
        with self._lock:
            if self._arenas is not None:
                raise TransportError("peer_copy: one region a node; it is registered already")
            spread = Spread(tuple(arena.address for arena in arenas), size, stride)
            try:
                self._writer = PeerWriter(
                    CudaContext(self._device.index),
                    kernel_handle(self._compiled),
                    *(_GRID.programs, _GRID.turn, CHUNK_BYTES, spread.begin, spread.extent),
                )
            except RuntimeError as error:
                raise TransportError(f"peer_copy cannot write from here: {error}") from error
            for bell in self._end_bells:
                self._writer.ring_at_ends(bell)
            self._exported = tuple(
                PeerArena(arena.gpu, Export(arena.handle, arena.offset)) for arena in arenas
            )
            self._arenas = spread
        return Region(spread.begin, spread.region_bytes)

    def metadata(self) -> bytes:
        with self._lock:
            arenas, _ = self._registered()
            return PeerAddress(
                process=ProcessIdentity.own(),
                arenas=self._exported,
                size=arenas.size,
                stride=arenas.stride,
                gate=self._gate.export,
                mailbox=self._mailbox_address,
            ).pack()

    def connect(self, metadata: bytes) -> Endpoint:
        address = PeerAddress.unpack(metadata)
        self._require_reachable(address)
        with ExitStack() as undo:
            gate = self._ipc.open(address.gate, WORD_BYTES)
            undo.callback(self._ipc.close, address.gate, gate)
            # Read now, not sent with the address, because a gate may have been shut since then.
            permission = self._ipc.read_word(gate)
            opened = []
            for arena in address.arenas:
                opened.append(self._ipc.open(arena.memory, address.size))
                undo.callback(self._ipc.close, arena.memory, opened[-1])
            arenas = Spread(tuple(opened), address.size, address.stride)
            mailbox = address.mailbox
            try:
                peer = PeerEndpoint(
                    *(mailbox.name, mailbox.secret, arenas.begin, arenas.extent, gate, permission)
                )
            except RuntimeError as error:
                raise TransportError(str(error)) from error
            undo.pop_all()
        endpoint = _PeerEndpoint(address, arenas, gate, peer)
        with self._lock:
            self._endpoints.append(endpoint)
        return endpoint

    def _require_reachable(self, address: PeerAddress) -> None:
        """Raise TransportError with the reason if this process cannot map the peer's memory."""
        if not address.process.here():
            raise TransportError("the peer is on another host, or in another pid namespace")
        if address.process == ProcessIdentity.own():
            raise TransportError("the peer is this very process, which CUDA cannot map twice")
        own = self._device.index
        for arena in address.arenas:
            theirs = [i for i in range(torch.cuda.device_count()) if _uuid(i) == arena.gpu]
            if not theirs:
                raise TransportError(
                    f"the peer's GPU {arena.gpu} is not visible here: give both processes all GPUs "
                    "and choose with --device cuda:N"
                )
            if theirs[0] != own and not torch.cuda.can_device_access_peer(own, theirs[0]):
                raise TransportError(f"GPU {own} cannot access the memory of GPU {theirs[0]}")

    def post(self, endpoint: Endpoint, segments: Segments, notification: bytes) -> Transfer:
        (posted,) = self.post_all(endpoint, [Write(segments, notification)])
        if isinstance(posted, Exception):
            raise posted
        return posted

    def post_all(self, endpoint: Endpoint, writes: Sequence[Write]) -> list[Transfer | Exception]:
        """Post all writes; as many chunks as fit one table are stored by one launch."""
        assert isinstance(endpoint, _PeerEndpoint)
        arenas, writer = self._registered()
        sides = arenas, endpoint.arenas
        found: dict[int, Transfer | Exception] = {}
        placed: dict[int, Segments] = {}
        for number, write in enumerate(writes):
            try:
                placed[number] = _placed(write.segments, *sides)
            except OutOfBounds as error:
                found[number] = error
        given = [(segments, writes[number].notification) for number, segments in placed.items()]
        posted = writer.post(endpoint.peer, given)
        for (number, segments), transfer in zip(placed.items(), posted, strict=True):
            found[number] = _error(transfer, segments, *sides) or _PeerTransfer(transfer)
        return [found[number] for number in range(len(writes))]

    def holds(self, endpoint: Endpoint) -> bool:
        """Return True: writes of chunks sent unchanged, from one arena into one, can be held."""
        return True

    def hold(
        self, endpoint: Endpoint, writes: Sequence[HeldWrite], holding: Holding
    ) -> list[HeldTransfer | Exception]:
        assert isinstance(endpoint, _PeerEndpoint)
        arenas, writer = self._registered()
        given = [
            (held.write.segments, held.write.notification, held.tick, held.chunk.places)
            for held in writes
        ]
        digests = self._digests_of(holding.digester)
        posted = writer.hold(endpoint.peer, given, holding.steps, holding.lease, digests)
        return [
            _error(transfer, held.write.segments, arenas, endpoint.arenas) or _PeerHeld(transfer)
            for transfer, held in zip(posted, writes, strict=True)
        ]

    def _digests_of(self, digester: GpuDigester) -> DigestQueue:
        with self._lock:
            if self._digests is None:
                self._digests = DigestQueue(digester)
                for bell in self._end_bells:
                    self._digests.ring_at_answers(bell)
            return self._digests

    def cancel(self, transfer: HeldTransfer) -> None:
        assert isinstance(transfer, _PeerHeld)
        self._registered()[1].cancel(transfer.posted)

    def poll(self, transfer: Transfer) -> TransferState:
        assert isinstance(transfer, _PeerTransfer)
        match transfer.posted.outcome:
            case PeerOutcome.PENDING:
                return TransferState.PENDING
            case PeerOutcome.DONE:
                return TransferState.DONE
            case PeerOutcome.CANCELLED | PeerOutcome.UNLEASED:
                return TransferState.DROPPED
        raise TransportError(f"peer_copy: {transfer.posted.why}")

    def release(self, transfer: Transfer) -> None:
        assert isinstance(transfer, _PeerTransfer)
        transfer.posted.release()

    def notifications(self) -> list[bytes]:
        with self._lock:
            return [] if self._closed else self._mailbox.read()

    def sever(self) -> None:
        self._gate.shut()

    def disconnect(self, endpoint: Endpoint) -> None:
        assert isinstance(endpoint, _PeerEndpoint)
        with self._lock:
            self._disconnect(endpoint)

    def _disconnect(self, endpoint: _PeerEndpoint) -> None:
        if not endpoint.open:
            return
        endpoint.open = False
        self._endpoints.remove(endpoint)
        try:
            self._registered()[1].disconnect(endpoint.peer)
        except RuntimeError as error:
            raise TransportError(f"peer_copy: the GPU failed: {error}") from error
        for arena, address in zip(endpoint.address.arenas, endpoint.arenas.addresses, strict=True):
            self._ipc.close(arena.memory, address)
        self._ipc.close(endpoint.address.gate, endpoint.gate)

    def close(self) -> None:
        with self._lock:
            if self._closed:
                return
            self._closed = True
            for endpoint in list(self._endpoints):
                self._disconnect(endpoint)
            if self._writer is not None:
                self._writer.stop()
            # Its launches read the arena: after this all are answered, and no launch follows.
            self._digests = None
            for bell in self._bells:
                bell.forget(self._mailbox.descriptor)
            self._mailbox.close()
            self._gate.close()
            self._arenas = None

    def _registered(self) -> tuple[Spread, PeerWriter]:
        if self._arenas is None or self._writer is None:
            raise TransportError("peer_copy: register the arena first")
        return self._arenas, self._writer


def _placed(segments: Segments, here: Spread, there: Spread) -> Segments:
    """Return the segments with offsets from the lowest address of each side's arenas. With one
    arena on each side they stay unchanged, and are checked when posted. Raises OutOfBounds."""
    if len(here.addresses) == len(there.addresses) == 1:
        return segments
    local, remote, lengths = segments.T
    columns = here.placed(local, lengths), there.placed(remote, lengths), lengths
    return np.stack(columns, axis=1)


def _error(
    posted: PeerTransfer, segments: Segments, here: Spread, there: Spread
) -> Exception | None:
    """Return the error of a write not started; None if it was. segments: those to post."""
    match posted.outcome:
        case PeerOutcome.OUTSIDE:
            try:
                check_bounds(segments, here.extent, there.extent)
            except OutOfBounds as error:
                return error
        case PeerOutcome.MISALIGNED:
            return OutOfBounds(f"peer_copy: segments must be multiples of {ALIGNMENT} bytes")
        case PeerOutcome.REFUSED:
            return TransportError(f"peer_copy: {posted.why}")
    return None


def _uuid(device: int) -> str:
    return str(torch.cuda.get_device_properties(device).uuid)
