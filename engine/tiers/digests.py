"""Digests of pages and slots in a tier and in the arena."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum

import numpy as np
import torch
import xxhash
from numpy.typing import NDArray

from tasuki.pycache.arena import Arena


def page_bytes(arena: Arena, page: int) -> NDArray[np.uint8]:
    """Return a view of a page's bytes in an arena in host memory: uint8 [regions, block bytes]."""
    layout = arena.layout
    blocks: NDArray[np.uint8] = arena.bytes.numpy().reshape(-1, layout.block_bytes)
    step = layout.pages_per_slab
    return blocks[page : page + len(layout.regions) * step : step]


def slot_bytes(arena: Arena, slot: int) -> NDArray[np.uint8]:
    """Return a view of a slot's bytes in an arena in host memory: uint8 [bytes of a slot]."""
    start = slot * arena.layout.slab_bytes
    memory: NDArray[np.uint8] = arena.bytes.numpy()
    return memory[start : start + arena.layout.slot_bytes]


class DigestKind(Enum):
    """The digest function of an arena's pages and slots. Its value is one of the settings compared
    before kept data of another run is used. Digests of different kinds cannot be compared."""

    XXH3 = "xxh3-128"
    """Computed by the host."""
    WORDS = "mixed-words-128"
    """Computed by a GPU (gpu/word_digest.py)."""

    @staticmethod
    def of(device: torch.device) -> "DigestKind":
        """Return the digest kind for an arena on `device`: XXH3 on a CPU, else WORDS."""
        return DigestKind.XXH3 if device.type == "cpu" else DigestKind.WORDS


@dataclass(frozen=True)
class TierDigests:
    """Digests of a tier's pages and slots, by their ids in the tier. An id never completely written
    has no digest. Thread rule: the tier's copying thread writes. The holder of a usable copy may
    read its digest."""

    pages: dict[int, int] = field(default_factory=dict)
    slots: dict[int, int] = field(default_factory=dict)


class ArenaDigests:
    """The digests of an arena's current pages and slots, to compare with the digests of a tier.

    A digest (XXH3, 128 bits) covers the bytes of one page or slot, region after region, independent
    of their address. Equal digests mean equal bytes, but for one pair of different contents in
    2^128. Digests are computed from the arena's bytes alone. A copy from one tier to the next keeps
    its digest, so the load finds corruption in between.

    Thread rule: any thread. The interpreter lock is free while bytes are read.
    """

    def __init__(self, arena: Arena) -> None:
        """REQUIRES: the arena is in host memory."""
        self._arena = arena

    def of_pages(self, pages: Sequence[int]) -> list[int]:
        return [self._of_page(page) for page in pages]

    def _of_page(self, page: int) -> int:
        total = xxhash.xxh3_128()
        for block in page_bytes(self._arena, page):
            total.update(block)
        return total.intdigest()

    def of_slot(self, slot: int) -> int:
        return xxhash.xxh3_128_intdigest(slot_bytes(self._arena, slot).data)
