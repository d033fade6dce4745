"""How fast one core digests windows of host memory: out of memory, and out of its cache.

Uses the layout of goodput's rows; needs no transport.
"""

import time
from collections.abc import Iterator
from statistics import median

import numpy as np

from tasuki.bench.measure.report import Row
from tasuki.pycache._cpp_cache import digest_instructions
from tasuki.transfer.windows.descriptors import window_bytes
from tasuki.transfer.windows.digest import WindowDigester
from tasuki.transfer.windows.window import WindowHeader

from .goodput import LAYOUT, PAGES, SLABS

_REPEATS = 21
_LAYERS = len(LAYOUT.layer_kinds)


def rows() -> Iterator[Row]:
    memory = np.random.default_rng(4).integers(0, 256, SLABS * LAYOUT.slab_bytes, dtype=np.uint8)
    digester = WindowDigester(memory, LAYOUT)
    pages = [
        slab * LAYOUT.blocks_per_slab + page
        for slab in range(SLABS)
        for page in range(LAYOUT.pages_per_slab)
    ]
    # All layers are more than most caches hold, one layer of half the pages is a share of one.
    for where, header in (
        ("memory", WindowHeader(0, 0, _LAYERS, 0, PAGES, False)),
        ("cache", WindowHeader(0, _LAYERS - 1, _LAYERS, 0, PAGES // 2, False)),
    ):
        window = pages[: header.pages]
        size = window_bytes(LAYOUT, header)
        seconds = median(_digest(digester, header, window) for _ in range(_REPEATS))
        yield Row(
            f"digest of {size / 1e6:.1f} MB in {where}, one thread, {digest_instructions()[-1]}",
            seconds,
            extra={"GB/s": size / seconds / 1e9},
        )


def _digest(digester: WindowDigester, header: WindowHeader, pages: list[int]) -> float:
    start = time.perf_counter()
    digester.digest(1, 1, header, pages, None)
    return time.perf_counter() - start
