"""Digests of windows: does what landed equal what was sent, byte for byte and in its place?

A block's sum is multilinear over its 64-bit words, sum(word[i] * key[i]) mod 2^64 with odd keys:
one multiply-add a word, in any order, so that a GPU can compute it at the speed of its memory. The
sum is mixed with (room, generation, layer, logical page or state), so that right bytes in a wrong
place fail; a window's digest is the sum of its blocks'. It finds accidents (flipped, swapped,
stale, missing bytes), not forgers.

Owns keys and a view of the arena's bytes. Knows no peers. Thread rule: calls of one digester may
run in parallel. Invariant: every block is a whole number of 64-bit words.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ..pycache.layout import CacheLayout, LayerKind
from .windows import WindowHeader

MASK = 2**64 - 1
_GOLDEN = 0x9E3779B97F4A7C15
_STATE = 2**32
"""Stands where a page's logical index would; no prompt has that many pages."""


def splitmix64(value: int) -> int:
    """A bijection of 64-bit integers in which every input bit moves every output bit."""
    value = (value + _GOLDEN) & MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & MASK
    return value ^ (value >> 31)


def word_keys(count: int) -> NDArray[np.uint64]:
    """Odd keys [count] uint64: splitmix64 of the word's index, lowest bit set."""
    value = (np.arange(count, dtype=np.uint64) + np.uint64(1)) * np.uint64(_GOLDEN)
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return (value ^ (value >> np.uint64(31))) | np.uint64(1)


class WindowDigester:
    """Digests windows out of one arena in host memory.

    memory: the arena's bytes, uint8 [slabs * slab_bytes], shared and never copied.
    """

    def __init__(self, memory: NDArray[np.uint8], layout: CacheLayout) -> None:
        if layout.block_bytes % 8 or layout.state_layer_bytes % 8:
            raise ValueError("digests need blocks and states of whole 64-bit words")
        self._layout = layout
        self._words = memory.view(np.uint64)
        self._blocks = self._words.reshape(-1, layout.block_bytes // 8)
        self._keys = word_keys(max(layout.block_bytes, layout.state_layer_bytes) // 8)

    def digest(
        self,
        room: int,
        generation: int,
        header: WindowHeader,
        pages: Sequence[int],
        slot: int | None,
    ) -> int:
        """The window's 64-bit digest from this arena's `pages` and `slot`.

        REQUIRES: ids are inside the arena; slot is given exactly if header.carries_state.
        """
        total = 0
        identity = splitmix64(splitmix64(room) ^ generation)
        ids = np.asarray(pages, dtype=np.int64)
        for layer in range(header.first_layer, header.end_layer):
            seed = splitmix64(identity ^ layer)
            if self._layout.layer_kinds[layer] is LayerKind.FULL:
                for index, value in enumerate(self._page_sums(layer, ids)):
                    total += splitmix64(splitmix64(seed ^ (header.first_page + index)) ^ value)
            elif slot is not None:
                total += splitmix64(splitmix64(seed ^ _STATE) ^ self._state_sum(layer, slot))
        return total & MASK

    def _page_sums(self, layer: int, pages: NDArray[np.int64]) -> list[int]:
        if not len(pages):
            return []
        rows = pages + self._layout.page_span(layer, 0).offset // self._layout.block_bytes
        edges = np.flatnonzero(np.diff(rows) != 1) + 1
        keys = self._keys[: self._blocks.shape[1]]
        sums: list[int] = []
        # By runs: a slice of neighbours is a view, a list of ids would be a copy.
        for run in np.split(rows, edges):
            block = self._blocks[run[0] : run[-1] + 1]
            sums += np.einsum("ij,j->i", block, keys).tolist()
        return sums

    def _state_sum(self, layer: int, slot: int) -> int:
        span = self._layout.state_span(layer, slot)
        words = self._words[span.offset // 8 : (span.offset + span.length) // 8]
        return int(np.einsum("i,i->", words, self._keys[: len(words)]))
