"""The gain of a wire of fewer bytes on a slow link: a prefix handed over as it lies, and in fp8.

Both over a loopback wire of a chosen rate (the throttle is in the sender's transport) within one
process, in turns in one run: from the plan to every digest equal, encoding and decoding included.
No model: the arena's numbers are random, of the shapes of four layers of 9B.
"""

import time
from collections.abc import Iterator
from statistics import median

import torch

from tasuki.bench.measure.report import Row
from tasuki.pycache.layout import CacheLayout, LayerKind
from tasuki.transfer.settings import Precision, WirePrecision, WireSettings
from tasuki.transfer.windows.window import Destination, FinishedLayers, StepCounter

from .hop import Hop

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
_WIRES = {
    "as it lies": WirePrecision(),
    "fp8": WirePrecision(Precision.FP8, Precision.FP8),
}


def rows() -> Iterator[Row | str]:
    hops = {
        name: Hop(
            *(_random_arena(), _random_arena(), _LAYOUT, StepCounter(), _BYTES_PER_SECOND),
            WireSettings(precision),
        )
        for name, precision in _WIRES.items()
    }
    seconds: dict[str, list[float]] = {name: [] for name in hops}
    sizes: dict[str, int] = {}
    try:
        for number in range(1 + _REPEATS):
            for name, hop in hops.items():
                taken, sizes[name] = _hand_over(hop, number)
                if number:
                    seconds[name].append(taken)
    finally:
        for hop in hops.values():
            hop.close()
    exact, encoded = (median(seconds[name]) for name in hops)
    exact_bytes, encoded_bytes = sizes.values()
    yield Row(
        f"{_TOKENS} tokens in four layers of 9B, link throttled to "
        f"{_BYTES_PER_SECOND / 1e6:g} MB/s, wire fp8",
        encoded,
        floor=encoded_bytes / _BYTES_PER_SECOND,
        others={"exact wire": exact},
        target="sooner than the exact wire",
        met=encoded < exact,
        extra={
            "of the exact wire": encoded / exact,
            "MB": encoded_bytes / 1e6,
            "exact MB": exact_bytes / 1e6,
        },
    )


def _hand_over(hop: Hop, room: int) -> tuple[float, int]:
    """Seconds from the plan to the verified end, and bytes of the wire. Raises BenchError."""
    pages = tuple(
        slab * _LAYOUT.blocks_per_slab + page
        for slab in range(1, _SLABS)
        for page in range(_LAYOUT.pages_per_slab)
    )[:_PAGES]
    hop.open(room, room, Destination(0, pages, 0))
    begun = time.perf_counter()
    hop.sender.plan_forward(room, FinishedLayers.long_finished(0, pages, 0))
    report = hop.verified(room, room)
    taken = time.perf_counter() - begun
    hop.receiver.forget(room)
    return taken, report.bytes


def _random_arena() -> torch.Tensor:
    """Bytes [slabs * slab_bytes] of bfloat16 numbers of about 1; read as float32 they are too."""
    numbers = torch.randn(_SLABS * _LAYOUT.slab_bytes // 2, dtype=torch.float32)
    return numbers.to(torch.bfloat16).view(torch.uint8)
