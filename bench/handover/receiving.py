"""The receiving node of a hand-over without its engine: an arena, a transport, a receiver.

Runs as a process of its own and obeys commands over a pipe, which `pair` sends. Has no model.
"""

from dataclasses import dataclass
from multiprocessing.connection import Connection

import torch
from tasuki.bench.errors import BenchError
from tasuki.engine.build import use_device
from tasuki.pycache.layout import CacheLayout
from tasuki.transfer.data_plane import DataPlane
from tasuki.transfer.receiving.receiver import Receiver
from tasuki.transfer.transports.base import Transport
from tasuki.transfer.transports.factory import build_transport
from tasuki.transfer.windows.destination import Destination
from tasuki.transfer.windows.send_report import WindowDigest

_IDLE_SECONDS = 0.02


@dataclass(frozen=True)
class Place:
    """Where a node of a pair is, and how it is written to."""

    device: str
    transport: str


@dataclass(frozen=True)
class Expect:
    room: int
    generation: int
    destination: Destination


@dataclass(frozen=True)
class Verify:
    """Answered by None once every window landed and is equal, or by what is wrong."""

    room: int
    generation: int
    digests: tuple[WindowDigest, ...]


@dataclass(frozen=True)
class SumWords:
    """Answered by the sum of the arena's int64 words in [first, end)."""

    first: int
    end: int


@dataclass(frozen=True)
class TakeNotes:
    """Read notifications without a receiver until this many came; answered by their number."""

    count: int


@dataclass(frozen=True)
class Close:
    pass


def run_receiving(channel: Connection, layout: CacheLayout, slabs: int, place: Place) -> None:
    """The process's main: sends the transport's metadata first."""
    torch.set_num_threads(1)
    device = torch.device(place.device)
    use_device(device)
    memory = torch.zeros(slabs * layout.slab_bytes, dtype=torch.uint8, device=device)
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    transport = build_transport(place.transport, "bench-receiver", device)
    plane = DataPlane.over(memory, layout, "random", transport, place.transport, "bench-receiver")
    channel.send_bytes(plane.node.arenas[0].transport_metadata)
    receiver: Receiver | None = None
    while True:
        match _next(channel, transport if receiver is None else None):
            case Expect(room, generation, destination):
                if receiver is None:
                    receiver = Receiver(layout, [plane.target()])
                    receiver.start()
                receiver.expect(room, generation, destination)
                channel.send(None)
            case Verify(room, generation, digests):
                assert receiver is not None
                receiver.verify(room, generation, digests, timeout=10.0)
                receiver.forget(room)
                channel.send(None)
            case SumWords(first, end):
                channel.send(int(memory.view(torch.int64)[first:end].sum().item()))
            case TakeNotes(count):
                taken = 0
                while taken < count:
                    taken += len(transport.notifications())
                channel.send(taken)
            case Close():
                if receiver is not None:
                    receiver.stop()
                transport.close()
                return
            case other:
                raise BenchError(f"the receiving process does not know {other!r}")


def _next(channel: Connection, idle: Transport | None) -> object:
    """The next thing asked; while none is, `idle` may move its peers' bytes, seldom enough to take
    nothing from what is measured elsewhere."""
    while idle is not None and not channel.poll(_IDLE_SECONDS):
        idle.notifications()
    return channel.recv()
