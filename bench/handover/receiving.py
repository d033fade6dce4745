"""The receiving node of a hand-over without its engine: an arena, a transport, a receiver.

Runs as a process of its own, which `pair` asks. Has no model.
"""

from dataclasses import dataclass
from multiprocessing.connection import Connection

import torch

from tasuki.engine.assembly.engines import use_device
from tasuki.pycache.layout import CacheLayout
from tasuki.transfer.data_plane import DataPlane
from tasuki.transfer.receiving.receiver import Receiver
from tasuki.transfer.reports import WindowDigest
from tasuki.transfer.transports.factory import build_transport
from tasuki.transfer.windows.window import Destination

_IDLE_SECONDS = 0.02


@dataclass(frozen=True)
class Place:
    """Where a node of a pair is, and how it is written to."""

    device: str
    transport: str


class Receiving:
    """What is asked of the process; its receiver starts with the first room that it expects."""

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

    def expect(self, room: int, generation: int, destination: Destination) -> None:
        if self._receiver is None:
            self._receiver = Receiver(self._layout, [self._plane.target()])
            self._receiver.start()
        self._receiver.expect(room, generation, destination)

    def verify(self, room: int, generation: int, digests: tuple[WindowDigest, ...]) -> None:
        """Returns once every window is there and equal. REQUIRES: expect."""
        assert self._receiver is not None
        self._receiver.verify(room, generation, digests, timeout=10.0)
        self._receiver.forget(room)

    def sum_words(self, first: int, end: int) -> int:
        """The sum of the arena's int64 words in [first, end)."""
        return int(self._memory.view(torch.int64)[first:end].sum().item())

    def take_notes(self, count: int) -> None:
        """Read notifications without a receiver until this many came."""
        taken = 0
        while taken < count:
            taken += len(self._transport.notifications())

    def idle(self, channel: Connection) -> None:
        """Until something is asked. Without a receiver peers' bytes may be moved meanwhile, seldom
        enough to take nothing from what is measured elsewhere."""
        while self._receiver is None and not channel.poll(_IDLE_SECONDS):
            self._transport.notifications()

    def close(self) -> None:
        if self._receiver is not None:
            self._receiver.stop()
        self._transport.close()


def run_receiving(channel: Connection, layout: CacheLayout, slabs: int, place: Place) -> None:
    """The process's main: sends the transport's metadata first; asked for None it ends."""
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
