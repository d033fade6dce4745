"""The bytes of a page and of a slot of an arena in host memory."""

import numpy as np
from numpy.typing import NDArray

from tasuki.pycache.arena import Arena


def page_bytes(arena: Arena, page: int) -> NDArray[np.uint8]:
    """[regions, bytes of a block], a view."""
    layout = arena.layout
    blocks: NDArray[np.uint8] = arena.bytes.numpy().reshape(-1, layout.block_bytes)
    step = layout.pages_per_slab
    return blocks[page : page + len(layout.regions) * step : step]


def slot_bytes(arena: Arena, slot: int) -> NDArray[np.uint8]:
    """[bytes of a slot], a view."""
    start = slot * arena.layout.slab_bytes
    memory: NDArray[np.uint8] = arena.bytes.numpy()
    return memory[start : start + arena.layout.slot_bytes]
