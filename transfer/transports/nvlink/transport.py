"""A kernel that stores into a peer GPU's memory, for processes and GPUs of one host.

Owns the export of this node's arena, its gate and mailbox, the mapped arenas of peers, and streams
on which windows are stored. Knows no layers and no rooms. Thread rule: as in base; one lock.
Invariants:
1. Nothing waits for the GPU but disconnect(), which must not unmap what a kernel still writes.
2. A notification is sent after the event behind the window's kernel was seen to have passed, by
   which time every program of it has released its stores at system scope.
3. A window is DONE only if every program found the peer's gate open.
What proves that no more writes come: the event of the last window (drain), the writer's death
(the driver ends its kernels before the process is gone), or sever(), which shuts the gate.
"""

import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from tasuki.transfer.errors import OutOfBounds, TransferError, TransportError
from tasuki.transfer.process_identity import ProcessIdentity
from tasuki.transfer.transports.base import (
    Endpoint,
    Region,
    Transfer,
    TransferState,
    Transport,
    Write,
)
from tasuki.transfer.windows.descriptors import Pieces, check_bounds
from tasuki.transfer.windows.units import TransferUnits

from .cuda_ipc import WORD_BYTES, CudaIpc
from .mailbox import Mailbox, MailboxWriter
from .peer_address import PeerAddress
from .staging import PIECES, Staging, Table
from .store_kernel import ALIGNMENT, Grid, PieceStore, Target, fill_table
from .write_gate import NOBODY, PeerGate

# More than one program an SM, beside a forward too: a few of them for longer slow it as much
# (docs/hand-over.md).
_GRID = Grid(programs=264, turn=4)
# So that one window's table and first stores go beside the last ones of the window before.
_STREAMS = 2
_HIGH_PRIORITY = -1


@dataclass(eq=False)
class _PeerEndpoint(Endpoint):
    address: PeerAddress
    arena: int
    gate: int
    permission: int
    mailbox: MailboxWriter
    open: bool = True

    @property
    def remote_size(self) -> int:
        return self.address.size

    @property
    def target(self) -> Target:
        return Target(self.arena, self.gate, self.permission)


@dataclass(eq=False)
class _PeerTransfer(Transfer):
    endpoint: _PeerEndpoint
    notification: bytes
    launch: "_Launch | None"
    """None of a notification alone, and once it was stored or released."""
    notified: bool = False


@dataclass(eq=False)
class _Launch:
    """Windows that one kernel stores. table: None once nothing of it is under way on the GPU.
    windows: those that may still ask."""

    table: Table | None
    windows: int
    stored: bool = False


class PeerCopyTransport(Transport):
    def __init__(self, device: torch.device) -> None:
        """device: the GPU that the arena is on. Raises TransportError where it cannot be shared."""
        if device.type != "cuda":
            raise TransportError("peer_copy writes GPU memory: give --device cuda, or use nixl")
        index = torch.cuda.current_device() if device.index is None else device.index
        self._device = torch.device("cuda", index)
        self._ipc = CudaIpc(index)
        self._gate = PeerGate(self._ipc)
        self._mailbox = Mailbox()
        self._staging = Staging(self._device)
        self._streams: list[Any] = [
            torch.cuda.Stream(self._device, priority=_HIGH_PRIORITY)  # type: ignore[no-untyped-call]
            for _ in range(_STREAMS)
        ]
        self._store = PieceStore()
        self._compile()
        self._lock = threading.Lock()
        self._region: Region | None = None
        self._endpoints: list[_PeerEndpoint] = []
        self._closed = False

    def _compile(self) -> None:
        """So that no window waits for it: one launch that finds the gate shut."""
        table = self._staging.take(0)
        own = self._gate.address
        with torch.cuda.stream(self._streams[0]):
            self._store.launch(
                own, Target(own, own, NOBODY), table.device, 0, table.flag_address, Grid(1, 1)
            )
            table.event.record(self._streams[0])
        self._staging.give_back(table)

    @property
    def settle_seconds(self) -> float:
        """A dead writer's kernels end with it; a live one's, once the gate is shut, in less."""
        return 0.1

    @property
    def retry_seconds(self) -> float:
        """Kernels that were launched in time run at once: their streams wait for nothing."""
        return 0.5

    @property
    def poll_seconds(self) -> float:
        """A window takes about as long."""
        return 0.0001

    @property
    def spin_seconds(self) -> float:
        return 0.002

    def register(self, address: int, size: int, units: TransferUnits | None = None) -> Region:
        with self._lock:
            if self._region is not None:
                raise TransportError("peer_copy: one arena a node; it is registered already")
            # Refused here rather than by the first peer.
            self._ipc.export(address)
            self._region = Region(address, size)
        return self._region

    def metadata(self) -> bytes:
        with self._lock:
            region = self._registered()
            return PeerAddress(
                process=ProcessIdentity.own(),
                gpu=_uuid(self._device.index),
                arena=self._ipc.export(region.address),
                size=region.size,
                gate=self._gate.export,
                mailbox=self._mailbox.address,
            ).pack()

    def connect(self, metadata: bytes) -> Endpoint:
        address = PeerAddress.unpack(metadata)
        self._require_reachable(address)
        with ExitStack() as undo:
            mailbox = MailboxWriter(address.mailbox)
            undo.callback(mailbox.close)
            gate = self._ipc.open(address.gate, WORD_BYTES)
            undo.callback(self._ipc.close, address.gate, gate)
            # Read now and not sent along: a gate may have been shut since its address was given.
            permission = self._ipc.read_word(gate)
            arena = self._ipc.open(address.arena, address.size)
            undo.pop_all()
        endpoint = _PeerEndpoint(address, arena, gate, permission, mailbox)
        with self._lock:
            self._endpoints.append(endpoint)
        return endpoint

    def _require_reachable(self, address: PeerAddress) -> None:
        """Raises TransportError naming why this process cannot map the peer's memory."""
        if not address.process.here():
            raise TransportError("the peer is on another host, or in another pid namespace")
        if address.process == ProcessIdentity.own():
            raise TransportError("the peer is this very process, which CUDA cannot map twice")
        theirs = [i for i in range(torch.cuda.device_count()) if _uuid(i) == address.gpu]
        if not theirs:
            raise TransportError(
                f"the peer's GPU {address.gpu} is not visible here: give both processes all GPUs "
                "and choose with --device cuda:N"
            )
        own = self._device.index
        if theirs[0] != own and not torch.cuda.can_device_access_peer(own, theirs[0]):
            raise TransportError(f"GPU {own} cannot access the memory of GPU {theirs[0]}")

    def post(
        self,
        endpoint: Endpoint,
        pieces: Pieces,
        notification: bytes,
    ) -> Transfer:
        (posted,) = self.post_all(endpoint, [Write(pieces, notification)])
        if isinstance(posted, Exception):
            raise posted
        return posted

    def post_all(self, endpoint: Endpoint, writes: Sequence[Write]) -> list[Transfer | Exception]:
        """Windows that fit one table are stored by one launch."""
        assert isinstance(endpoint, _PeerEndpoint)
        with self._lock:
            posted: dict[int, Transfer | Exception] = {}
            stored: list[int] = []
            for index, write in enumerate(writes):
                try:
                    self._check(endpoint, write.pieces)
                except TransferError as error:
                    posted[index] = error
                    continue
                if len(write.pieces):
                    stored.append(index)
                else:
                    posted[index] = _PeerTransfer(endpoint, write.notification, None)
            for together in _fitting(stored, [len(write.pieces) for write in writes]):
                posted.update(self._store_together(endpoint, writes, together))
        return [posted[index] for index in range(len(writes))]

    def _check(self, endpoint: _PeerEndpoint, pieces: Pieces) -> None:
        """Raises OutOfBounds, TransportError."""
        region = self._registered()
        check_bounds(pieces, region.size, endpoint.remote_size)
        if int(np.bitwise_or.reduce(pieces, axis=None)) % ALIGNMENT:
            raise OutOfBounds(f"peer_copy: pieces must be multiples of {ALIGNMENT} bytes")
        if not endpoint.open:
            raise TransportError("peer_copy: the connection is closed")

    def _store_together(
        self, endpoint: _PeerEndpoint, writes: Sequence[Write], together: Sequence[int]
    ) -> dict[int, Transfer | Exception]:
        pieces = [writes[index].pieces for index in together]
        try:
            table = self._launch(
                self._registered(), endpoint, pieces[0] if len(pieces) == 1 else np.vstack(pieces)
            )
        except TransportError as error:
            return dict.fromkeys(together, error)
        launch = _Launch(table, len(together))
        return {
            index: _PeerTransfer(endpoint, writes[index].notification, launch) for index in together
        }

    def _launch(self, region: Region, endpoint: _PeerEndpoint, pieces: Pieces) -> Table:
        """Raises TransportError."""
        count = len(pieces)
        # In turn.
        stream = self._streams.pop(0)
        self._streams.append(stream)
        try:
            with torch.cuda.stream(stream):
                table = self._staging.take(count)
                chunks = fill_table(table.host, pieces)
                table.send()
                turns = -(-chunks // _GRID.turn)
                self._store.launch(
                    region.address,
                    endpoint.target,
                    table.device,
                    count,
                    table.flag_address,
                    Grid(min(_GRID.programs, turns), _GRID.turn),
                )
                table.event.record(stream)
        except RuntimeError as error:
            raise TransportError(f"peer_copy could not post: {error}") from error
        return table

    def poll(self, transfer: Transfer) -> TransferState:
        assert isinstance(transfer, _PeerTransfer)
        with self._lock:
            if transfer.launch is not None:
                if not self._over(transfer.launch):
                    return TransferState.PENDING
                stored = transfer.launch.stored
                self._let_go(transfer)
                if not stored:
                    raise TransportError("peer_copy: the receiver has shut its gate; connect anew")
            if not transfer.notified:
                transfer.notified = transfer.endpoint.mailbox.write(transfer.notification)
        return TransferState.DONE if transfer.notified else TransferState.PENDING

    def _over(self, launch: _Launch) -> bool:
        """Whether the GPU is through with it; then its table is free."""
        table = launch.table
        if table is None:
            return True
        if not self._passed(table):
            return False
        launch.stored = bool(table.flag[0])
        launch.table = None
        self._staging.give_back(table)
        return True

    def _let_go(self, transfer: _PeerTransfer) -> None:
        """It asks no more. Idempotent."""
        launch, transfer.launch = transfer.launch, None
        if launch is None:
            return
        launch.windows -= 1
        if not launch.windows and launch.table is not None:
            self._staging.give_back(launch.table)
            launch.table = None

    @staticmethod
    def _passed(table: Table) -> bool:
        try:
            return table.passed
        except RuntimeError as error:
            raise TransportError(f"peer_copy: the GPU failed: {error}") from error

    def release(self, transfer: Transfer) -> None:
        assert isinstance(transfer, _PeerTransfer)
        with self._lock:
            self._let_go(transfer)

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
        endpoint.mailbox.close()
        # Unmapping under a kernel that writes would break this process's context.
        for stream in self._streams:
            stream.synchronize()
        self._ipc.close(endpoint.address.arena, endpoint.arena)
        self._ipc.close(endpoint.address.gate, endpoint.gate)

    def close(self) -> None:
        with self._lock:
            if self._closed:
                return
            self._closed = True
            for endpoint in list(self._endpoints):
                self._disconnect(endpoint)
            self._mailbox.close()
            self._gate.close()
            self._region = None

    def _registered(self) -> Region:
        if self._region is None:
            raise TransportError("peer_copy: register the arena first")
        return self._region


def _fitting(indices: Sequence[int], pieces: Sequence[int]) -> Iterator[list[int]]:
    """In order, as many together as one table has room for; larger ones alone. pieces: of each
    window."""
    together: list[int] = []
    count = 0
    for index in indices:
        if together and count + pieces[index] > PIECES:
            yield together
            together, count = [], 0
        together.append(index)
        count += pieces[index]
    if together:
        yield together


def _uuid(device: int) -> str:
    return str(torch.cuda.get_device_properties(device).uuid)
