"""The gain of a wire of fewer bytes on a slow link: a prefix handed over as it lies, and in fp8.

Both over a loopback wire of a chosen rate (the throttle is in the sender's transport) within one
process, in turns in one run: from the plan to every digest equal, encoding and decoding included.
No model: the arena's numbers are random, of the shapes of four layers of 9B.
"""

import time
from collections.abc import Iterator
from queue import SimpleQueue
from statistics import median

import torch
from tasuki.bench.errors import BenchError
from tasuki.bench.measure.report import Row
from tasuki.pycache.layout import CacheLayout, LayerKind
from tasuki.transfer.data_plane import DataPlane
from tasuki.transfer.precision.precision import Precision, WirePrecision
from tasuki.transfer.precision.settings import WireSettings
from tasuki.transfer.sending.outgoing_room import RoomEnd, RoomSent
from tasuki.transfer.transfer_engine import TransferEngine
from tasuki.transfer.transports.loopback import LoopbackFabric, LoopbackTransport
from tasuki.transfer.windows.destination import Destination
from tasuki.transfer.windows.step_counter import StepCounter
from tasuki.transfer.windows.window import FinishedLayers

_LAYOUT = CacheLayout(
    layer_kinds=(*[LayerKind.GDN] * 3, LayerKind.FULL),
    kv_heads=4,
    head_dim=256,
    kv_dtype="bfloat16",
    conv_channels=8192,
    conv_columns=3,
    conv_dtype="bfloat16",
    value_heads=32,
    value_dim=128,
    key_dim=128,
    ssm_dtype="float32",
)
_TOKENS = 4096
_PAGES = _TOKENS // 64
_SLABS = 16
# A gigabit a second.
_BYTES_PER_SECOND = 125e6
_REPEATS = 5
_SECONDS = 60.0
_LEASE_SECONDS = 3600.0
_WIRES = {
    "as it lies": WirePrecision(),
    "fp8": WirePrecision(Precision.FP8, Precision.FP8),
}


def encoded_rows() -> Iterator[Row | str]:
    hops = {name: _Hop(precision) for name, precision in _WIRES.items()}
    seconds: dict[str, list[float]] = {name: [] for name in hops}
    try:
        for number in range(1 + _REPEATS):
            for name, hop in hops.items():
                taken = hop.hand_over(number)
                if number:
                    seconds[name].append(taken)
    finally:
        for hop in hops.values():
            hop.close()
    exact, encoded = (median(seconds[name]) for name in hops)
    sizes = [hop.bytes for hop in hops.values()]
    yield Row(
        f"{_TOKENS} tokens in four layers of 9B, link throttled to "
        f"{_BYTES_PER_SECOND / 1e6:g} MB/s, wire fp8",
        encoded,
        floor=sizes[1] / _BYTES_PER_SECOND,
        others={"exact wire": exact},
        target="sooner than the exact wire",
        met=encoded < exact,
        extra={
            "of the exact wire": encoded / exact,
            "MB": sizes[1] / 1e6,
            "exact MB": sizes[0] / 1e6,
        },
    )


class _Hop:
    """Two arenas and the wire between them."""

    def __init__(self, precision: WirePrecision) -> None:
        self.bytes = 0
        fabric = LoopbackFabric()
        self._link = LoopbackTransport(fabric, "sender")
        self._link.bytes_per_second = _BYTES_PER_SECOND
        landing = LoopbackTransport(fabric, "receiver")
        wire = WireSettings(precision)
        source, target = (
            DataPlane.over(_random_arena(), _LAYOUT, "random", transport, "loopback", "bench", wire)
            for transport in (self._link, landing)
        )
        # Of each only one end is used.
        self._source, self._target = (
            TransferEngine.over(plane, StepCounter(), None, _LEASE_SECONDS)
            for plane in (source, target)
        )
        self._source.sender.connect("receiver", target.node.arenas)
        self._ended: SimpleQueue[RoomEnd] = SimpleQueue()
        self._source.sender.start()
        self._target.receiver.start()

    def close(self) -> None:
        self._source.sender.stop()
        self._target.receiver.stop()

    def hand_over(self, room: int) -> float:
        """Seconds from the plan to the verified end. Raises BenchError."""
        pages = tuple(
            slab * _LAYOUT.blocks_per_slab + page
            for slab in range(1, _SLABS)
            for page in range(_LAYOUT.pages_per_slab)
        )[:_PAGES]
        sender, receiver = self._source.sender, self._target.receiver
        receiver.expect(room, room, Destination(0, pages, 0))
        sender.open(room, room, "receiver", Destination(0, pages, 0), self._ended.put)
        begun = time.perf_counter()
        sender.plan_forward(room, FinishedLayers.long_finished(0, pages, 0))
        end = self._ended.get(timeout=_SECONDS)
        if not isinstance(end, RoomSent):
            raise BenchError(f"the hand-over broke: {end.reason}")
        receiver.verify(room, room, end.report.digests, _SECONDS)
        taken = time.perf_counter() - begun
        receiver.forget(room)
        self.bytes = end.report.bytes
        return taken


def _random_arena() -> torch.Tensor:
    """Bytes [slabs * slab_bytes] of bfloat16 numbers of about 1; read as float32 they are too."""
    numbers = torch.randn(_SLABS * _LAYOUT.slab_bytes // 2, dtype=torch.float32)
    return numbers.to(torch.bfloat16).view(torch.uint8)
