"""A hand-over inside one process: a sender and a receiver over a loopback wire of a chosen rate.

The throttle is in the sender's transport.
"""

from queue import Empty, SimpleQueue

import torch

from tasuki.bench.errors import BenchError
from tasuki.pycache.layout import CacheLayout
from tasuki.transfer.data_plane import DataPlane, TransferEngine
from tasuki.transfer.reports import SendReport
from tasuki.transfer.sending.outgoing_room import RoomEnd, RoomSent
from tasuki.transfer.settings import WireSettings
from tasuki.transfer.transports.loopback import LoopbackFabric, LoopbackTransport
from tasuki.transfer.windows.window import Destination, StepCounter

_SECONDS = 60.0
_LEASE_SECONDS = 3600.0


class Hop:
    """Between two arenas of one layout. Life: close() at the end."""

    def __init__(
        self,
        source: torch.Tensor,
        target: torch.Tensor,
        layout: CacheLayout,
        steps: StepCounter,
        bytes_per_second: float,
        wire: WireSettings | None = None,
    ) -> None:
        """source, target: bytes, uint8 [slabs * slab_bytes]. steps: count what fills the source."""
        fabric = LoopbackFabric()
        link, landing = (LoopbackTransport(fabric, name) for name in ("sender", "receiver"))
        link.bytes_per_second = bytes_per_second
        planes = [
            DataPlane.over(memory, layout, "random", transport, "loopback", "bench", wire)
            for memory, transport in ((source, link), (target, landing))
        ]
        # Of each only one end is used.
        here, there = (TransferEngine.over(plane, steps, None, _LEASE_SECONDS) for plane in planes)
        self.sender, self.receiver = here.sender, there.receiver
        self.sender.connect("receiver", planes[1].node.arenas)
        self._ended: SimpleQueue[RoomEnd] = SimpleQueue()
        self.sender.start()
        self.receiver.start()

    def open(self, room: int, generation: int, destination: Destination) -> None:
        self.receiver.expect(room, generation, destination)
        self.sender.open(room, generation, "receiver", destination, self._ended.put)

    def verified(self, room: int, generation: int) -> SendReport:
        """Returns once every digest is equal. Raises BenchError."""
        report = sent_whole(self._ended).report
        self.receiver.verify(room, generation, report.digests, _SECONDS)
        return report

    def close(self) -> None:
        self.sender.stop()
        self.receiver.stop()


def sent_whole(ended: SimpleQueue[RoomEnd]) -> RoomSent:
    """The end that a sender put there. Raises BenchError where there is none, or a broken one."""
    try:
        end = ended.get(timeout=_SECONDS)
    except Empty as error:
        raise BenchError("the room does not end") from error
    if not isinstance(end, RoomSent):
        raise BenchError(f"the room broke: {end.reason}")
    return end
