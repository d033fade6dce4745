"""Transport within one process: a write is a memory copy. For tests and laptops; faults can be
injected.

Owns the fabric's list of nodes and the posted transfers not yet complete. Same checks as any other
transport. Thread rule: base.py's; one lock a fabric, held for the length of a copy.
"""

import ctypes
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum

from tasuki.transfer.chunks.descriptors import Segments, TransferUnits, check_bounds
from tasuki.transfer.errors import TransportError

from .base import Endpoint, Region, Transfer, TransferState, Transport


class Fault(Enum):
    """Fault injected into one posted write."""

    NONE = "none"
    FLIP_BIT = "a bit of the first segment's first byte arrives wrong"
    DUPLICATE = "bytes arrive and are announced twice"
    HOLD = "stays pending, and arrives when the fabric lets go"
    LOSE = "reported as done, and neither bytes nor notification arrive"
    REFUSE = "cannot be posted"
    BREAK = "fails after it was posted, nothing arrived"


Faults = Callable[[int], Fault]
"""Function from the number of a post on this transport to the fault to inject."""


def no_faults(index: int) -> Fault:
    return Fault.NONE


@dataclass
class _Node:
    region: Region
    mailbox: deque[bytes] = field(default_factory=deque)


class LoopbackFabric:
    """Simulated network between the transports of one process."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.nodes: dict[str, _Node] = {}
        self.held: list[_LoopbackTransfer] = []

    def let_go(self) -> int:
        """Complete every write held by an injected fault, even very late; return their number."""
        with self.lock:
            held, self.held = self.held, []
            for transfer in held:
                transfer.arrive()
        return len(held)


@dataclass
class _LoopbackEndpoint(Endpoint):
    node: _Node
    open: bool = True

    @property
    def remote_size(self) -> int:
        return self.node.region.size


@dataclass
class _LoopbackTransfer(Transfer):
    source: Region
    node: _Node
    segments: Segments
    notification: bytes
    state: TransferState = TransferState.PENDING
    error: str | None = None
    due: float | None = None

    def arrive(self) -> None:
        target = self.node.region
        for local, remote, length in self.segments.tolist():
            ctypes.memmove(target.address + remote, self.source.address + local, length)
        self.node.mailbox.append(self.notification)
        self.state = TransferState.DONE


class LoopbackTransport(Transport):
    def __init__(self, fabric: LoopbackFabric, name: str, faults: Faults = no_faults) -> None:
        self._fabric = fabric
        self._name = name
        self._faults = faults
        self._posted = 0
        self._through_at = 0.0
        self.bytes_per_second: float | None = None
        """Speed of the simulated wire in bytes a second; posted writes then take turns. None:
        writes complete immediately."""
        self._node: _Node | None = None

    @property
    def settle_seconds(self) -> float:
        return 0.0

    @property
    def retry_seconds(self) -> float:
        return 0.0

    def register(self, address: int, size: int, units: TransferUnits | None = None) -> Region:
        with self._fabric.lock:
            if self._name in self._fabric.nodes:
                raise TransportError(f"loopback node {self._name} is registered already")
            self._node = _Node(Region(address, size))
            self._fabric.nodes[self._name] = self._node
        return self._node.region

    def metadata(self) -> bytes:
        return self._name.encode()

    def connect(self, metadata: bytes) -> Endpoint:
        with self._fabric.lock:
            node = self._fabric.nodes.get(metadata.decode(errors="replace"))
        if node is None:
            raise TransportError(f"no loopback node of the name {metadata!r} in this process")
        return _LoopbackEndpoint(node)

    def post(self, endpoint: Endpoint, segments: Segments, notification: bytes) -> Transfer:
        assert isinstance(endpoint, _LoopbackEndpoint)
        if self._node is None:
            raise TransportError("loopback: register the arena before posting")
        check_bounds(segments, self._node.region.size, endpoint.remote_size)
        with self._fabric.lock:
            fault = self._faults(self._posted)
            self._posted += 1
            if fault is Fault.REFUSE or not endpoint.open:
                raise TransportError("loopback: the endpoint takes no transfers")
            transfer = _LoopbackTransfer(self._node.region, endpoint.node, segments, notification)
            self._apply(transfer, fault)
        return transfer

    def _apply(self, transfer: _LoopbackTransfer, fault: Fault) -> None:
        if fault is Fault.HOLD:
            self._fabric.held.append(transfer)
        elif fault is Fault.LOSE:
            transfer.state = TransferState.DONE
        elif fault is Fault.BREAK:
            transfer.error = "loopback: the transfer broke"
        elif (bytes_per_second := self.bytes_per_second) is not None:
            begins = max(time.monotonic(), self._through_at)
            self._through_at = begins + int(transfer.segments[:, 2].sum()) / bytes_per_second
            transfer.due = self._through_at
        else:
            transfer.arrive()
            if fault is Fault.DUPLICATE:
                transfer.arrive()
            if fault is Fault.FLIP_BIT and len(transfer.segments):
                address = transfer.node.region.address + int(transfer.segments[0, 1])
                ctypes.c_uint8.from_address(address).value ^= 1

    def poll(self, transfer: Transfer) -> TransferState:
        assert isinstance(transfer, _LoopbackTransfer)
        if transfer.error is not None:
            raise TransportError(transfer.error)
        if transfer.due is not None and time.monotonic() >= transfer.due:
            with self._fabric.lock:
                transfer.due = None
                transfer.arrive()
        return transfer.state

    def release(self, transfer: Transfer) -> None:
        """Do nothing: a held write is not cancelled, because real wires deliver late and tests must
        see it."""

    def notifications(self) -> list[bytes]:
        with self._fabric.lock:
            if self._node is None:
                return []
            arrived = list(self._node.mailbox)
            self._node.mailbox.clear()
        return arrived

    def sever(self) -> None:
        """Break the held writes to this node: they never arrive."""
        with self._fabric.lock:
            for transfer in list(self._fabric.held):
                if transfer.node is self._node:
                    self._fabric.held.remove(transfer)
                    transfer.error = "loopback: the receiver severed its connections"

    def disconnect(self, endpoint: Endpoint) -> None:
        assert isinstance(endpoint, _LoopbackEndpoint)
        endpoint.open = False

    def close(self) -> None:
        with self._fabric.lock:
            self._fabric.nodes.pop(self._name, None)
            self._node = None
