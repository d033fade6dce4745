"""Digests of pages and slots in a tier and in the arena.

Owns the digests of one tier. Thread rule: the copying thread writes; the holder of a usable copy
may read.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum

import numpy as np
import torch
import xxhash
from numpy.typing import NDArray

from tasuki.pycache.arena import Arena


def page_bytes(arena: Arena, page: int) -> NDArray[np.uint8]:
    """The bytes of a page and of a slot of an arena in host memory.

    [regions, bytes of a block], a view.
    """
    layout = arena.layout
    blocks: NDArray[np.uint8] = arena.bytes.numpy().reshape(-1, layout.block_bytes)
    step = layout.pages_per_slab
    return blocks[page : page + len(layout.regions) * step : step]


def slot_bytes(arena: Arena, slot: int) -> NDArray[np.uint8]:
    """[bytes of a slot], a view."""
    start = slot * arena.layout.slab_bytes
    memory: NDArray[np.uint8] = arena.bytes.numpy()
    return memory[start : start + arena.layout.slot_bytes]


class DigestKind(Enum):
    """Which digest an arena's pages and slots have. Its value is part of the contract of all that
    outlives a node: what was written with one cannot be compared with another."""

    XXH3 = "xxh3-128"
    """By the host."""
    WORDS = "mixed-words-128"
    """By a GPU (gpu/word_digest.py)."""

    @staticmethod
    def of(device: torch.device) -> "DigestKind":
        """device: of the arena."""
        return DigestKind.XXH3 if device.type == "cpu" else DigestKind.WORDS


@dataclass(frozen=True)
class TierDigests:
    """By id of the tier; none of what was never written whole. Thread rule: the thread that copies
    to the tier writes; who holds a copy of use may read its digest."""

    pages: dict[int, int] = field(default_factory=dict)
    slots: dict[int, int] = field(default_factory=dict)


class ArenaDigests:
    """What the pages and slots of a tier were written with, and what those of the arena have now.

    A digest (128 bits) is of the bytes of one page or slot, region after region, and not of their
    place: what the arena had and what came back from below are equal if their digests are, but for
    one pair of differing pieces in 2^128. Digests are of the arena's bytes alone, and taken where
    that is. A copy from one tier to the next takes the digest along: what rotted on its way fails
    where it is loaded.

    XXH3. Thread rule: any. Holds no interpreter's lock while bytes are read.
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
