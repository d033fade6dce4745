"""The receiving node of a transfer without its engine: an arena, a transport, a receiver.

Runs as a separate process, without a model. The first process calls it through a ReceivingPeer.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import TypeVar, TypeVarTuple, cast

import torch

from tasuki.engine.assembly.parts import use_device
from tasuki.pycache.layout import CacheLayout
from tasuki.transfer.chunks.chunk import Destination
from tasuki.transfer.data_plane import DataPlane
from tasuki.transfer.receiving.receiver import Receiver
from tasuki.transfer.reports import ChunkDigest
from tasuki.transfer.transports.factory import build_transport

from .process import Spawned, spawned

_IDLE_SECONDS = 0.02


@dataclass(frozen=True)
class Place:
    """The device of a node's arena, and the name of its transport."""

    device: str
    transport: str


class Receiving:
    """The calls answered by the receiving process. Its receiver thread starts at the first
    expect()."""

    def __init__(self, layout: CacheLayout, slabs: int, place: Place) -> None:
        device = torch.device(place.device)
        use_device(device)
        self._layout = layout
        self._memory = torch.zeros(slabs * layout.slab_bytes, dtype=torch.uint8, device=device)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        name, kind = "bench-receiver", place.transport
        self._transport = build_transport(kind, name, device)
        self._plane = DataPlane.over(self._memory, layout, "random", self._transport, kind, name)
        self._receiver: Receiver | None = None
        self.metadata = self._plane.node.arenas[0].transport_metadata

    def expect(self, transfer_id: int, generation: int, destination: Destination) -> None:
        if self._receiver is None:
            self._receiver = Receiver(self._layout, [self._plane.target()])
            self._receiver.start()
        self._receiver.expect(transfer_id, generation, destination)

    def verify(self, transfer_id: int, generation: int, digests: tuple[ChunkDigest, ...]) -> None:
        """Wait until every layer chunk has arrived and has the sender's digest. REQUIRES: expect()
        of this transfer."""
        assert self._receiver is not None
        self._receiver.verify(transfer_id, generation, digests, timeout=10.0)
        self._receiver.forget(transfer_id)

    def sum_words(self, first: int, end: int) -> int:
        """Return the sum of the arena's int64 words with index in [first, end)."""
        return int(self._memory.view(torch.int64)[first:end].sum().item())

    def take_notes(self, count: int) -> None:
        """Read `count` notifications from the transport, without a receiver."""
        taken = 0
        while taken < count:
            taken += len(self._transport.notifications())

    def idle(self, channel: Connection) -> None:
        """Wait for the next call. Without a receiver, polls the transport meanwhile to advance
        peers' writes, rarely enough not to disturb other measurements."""
        while self._receiver is None and not channel.poll(_IDLE_SECONDS):
            self._transport.notifications()

    def close(self) -> None:
        if self._receiver is not None:
            self._receiver.stop()
        self._transport.close()


def run_receiving(channel: Connection, layout: CacheLayout, slabs: int, place: Place) -> None:
    """Run the receiving process: send the transport's metadata first, then answer calls until None
    is received."""
    torch.set_num_threads(1)
    receiving = Receiving(layout, slabs, place)
    channel.send(receiving.metadata)
    while True:
        receiving.idle(channel)
        asked = channel.recv()
        if asked is None:
            break
        method, arguments = asked
        channel.send(method(receiving, *arguments))
    receiving.close()


_START_SECONDS = 180.0
_ANSWER_SECONDS = 60.0

Asked = TypeVarTuple("Asked")
Answer = TypeVar("Answer")


class ReceivingPeer:
    """The first process's handle on the receiving process. Owns the receiving process. Thread rule:
    one thread."""

    def __init__(self, process: Spawned) -> None:
        self._process = process
        self.metadata: bytes = process.received(_START_SECONDS)

    def ask(self, method: Callable[[Receiving, *Asked], Answer], *arguments: *Asked) -> Answer:
        """Call the Receiving method `method` in the process and return its result. Raises
        BenchError."""
        self.begin(method, *arguments)
        return cast(Answer, self.answer())

    def begin(self, method: Callable[[Receiving, *Asked], object], *arguments: *Asked) -> None:
        """Start a call of the Receiving method `method`; answer() waits for its result."""
        self._process.channel.send((method, arguments))

    def answer(self) -> object:
        return self._process.received(_ANSWER_SECONDS)


@contextmanager
def receiving_peer(layout: CacheLayout, slabs: int, place: Place) -> Iterator[ReceivingPeer]:
    """Run a receiving process with an arena of `slabs` slabs at `place`, until the block ends."""
    arguments = (layout, slabs, place)
    with spawned("the receiving process", run_receiving, *arguments) as process:
        yield ReceivingPeer(process)
        process.channel.send(None)
