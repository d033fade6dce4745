"""Digests of windows: does what landed equal what was sent, byte for byte and in its place?

A block's sum is multilinear over its 64-bit words, sum(word[i] * key[i]) mod 2^64 with odd keys:
one multiply-add a word, in any order, so that a CPU (cpp_cache/digest) or a GPU computes it
at the speed of its memory. The sum is mixed with (room, generation, layer, logical page or state),
so that right bytes in a wrong place fail; a window's digest is the sum of its blocks'. It finds
accidents (flipped, swapped, stale, missing bytes), not forgers.

Owns a view of the arena's bytes. Knows no peers. Thread rule: calls of one digester may run in
parallel. Invariant: every block is a whole number of 64-bit words, since a page has 64 tokens and a
state's columns are padded to 64 bytes.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tasuki.pycache._cpp_cache import RowDigester, WindowGeometry
from tasuki.pycache._cpp_cache import WindowDigester as CompiledDigester
from tasuki.pycache.layout import CacheLayout, LayerKind

from .descriptors import page_offsets
from .unit_sizes import UnitSizes
from .window import WindowHeader

MASK = 2**64 - 1
_GOLDEN = 0x9E3779B97F4A7C15
_NOTHING = np.empty(0, dtype=np.int64)
_WORD = 8
"""Bytes."""
_STATE = 2**32
"""Stands where a page's logical index would; no prompt has that many pages."""


def splitmix64(value: int) -> int:
    """A bijection of 64-bit integers in which every input bit moves every output bit."""
    value = (value + _GOLDEN) & MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & MASK
    return value ^ (value >> 31)


def splitmix64_all(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """splitmix64 of each."""
    return _mixed(values + np.uint64(_GOLDEN))


def word_keys(count: int) -> NDArray[np.uint64]:
    """Odd keys [count] uint64: a mix of the word's index, lowest bit set."""
    index = np.arange(1, count + 1, dtype=np.uint64)
    return _mixed(index * np.uint64(_GOLDEN)) | np.uint64(1)


def _mixed(value: NDArray[np.uint64]) -> NDArray[np.uint64]:
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return value ^ (value >> np.uint64(31))


@dataclass(frozen=True)
class WindowRows:
    """What a window consists of, in order: int64 [rows] each. offsets, lengths: in 64-bit words of
    the arena; seeds: bits of what a row's sum is mixed with."""

    offsets: NDArray[np.int64]
    lengths: NDArray[np.int64]
    seeds: NDArray[np.int64]

    def table(self) -> NDArray[np.int64]:
        """[3, rows, or one more of zeros to be even], as `WindowGeometry.rows` makes it: a GPU's
        kernel is compiled anew for rows that do not begin at 16 bytes."""
        count = len(self.offsets)
        table = np.zeros((3, count + count % 2), dtype=np.int64)
        table[:, :count] = self.offsets, self.lengths, self.seeds
        return table


def window_rows(
    layout: CacheLayout,
    room: int,
    generation: int,
    header: WindowHeader,
    pages: Sequence[int],
    slot: int | None,
    sizes: UnitSizes | None = None,
) -> WindowRows:
    """sizes: of units on the wire, from their heads; the whole ones of the layout by default.

    REQUIRES: ids are inside the arena; slot is given exactly if header.carries_state."""
    lengths = layout if sizes is None else sizes
    parts: list[tuple[NDArray[np.int64], int, NDArray[np.uint64]]] = []
    identity = splitmix64(splitmix64(room) ^ generation)
    places = np.arange(header.first_page, header.first_page + len(pages), dtype=np.uint64)
    for layer in range(header.first_layer, header.end_layer):
        seed = np.uint64(splitmix64(identity ^ layer))
        if layout.layer_kinds[layer] is LayerKind.FULL:
            offsets = page_offsets(layout, layer, pages)
            parts.append((offsets, lengths.block_bytes, splitmix64_all(seed ^ places)))
        elif slot is not None:
            span = layout.state_span(layer, slot)
            place = np.array([_STATE], dtype=np.uint64)
            length = lengths.state_layer_bytes
            parts.append((np.array([span.offset]), length, splitmix64_all(seed ^ place)))
    return WindowRows(
        np.concatenate([_NOTHING, *(offsets // _WORD for offsets, _, _ in parts)]),
        np.repeat(
            np.array([length // _WORD for _, length, _ in parts], dtype=np.int64),
            [len(offsets) for offsets, _, _ in parts],
        ),
        np.concatenate([_NOTHING, *(seeds.view(np.int64) for _, _, seeds in parts)]),
    )


def window_geometry(layout: CacheLayout, sizes: UnitSizes | None = None) -> WindowGeometry:
    """Compiled: of an arena of that layout. Its rows are those of `window_rows`, its twin.

    sizes: of units on the wire, from their heads; the whole ones of the layout by default."""
    lengths = layout if sizes is None else sizes
    return WindowGeometry(
        [_layer_place(layout, layer) for layer in range(len(layout.layer_kinds))],
        layout.block_bytes // _WORD,
        layout.slab_bytes // _WORD,
        lengths.block_bytes // _WORD,
        lengths.state_layer_bytes // _WORD,
    )


def _layer_place(layout: CacheLayout, layer: int) -> tuple[bool, int]:
    """Whether it keeps pages; the word at which its page 0, or its state of slot 0, begins."""
    if layout.layer_kinds[layer] is LayerKind.FULL:
        return True, layout.page_span(layer, 0).offset // _WORD
    return False, layout.state_span(layer, 0).offset // _WORD


class Digester(ABC):
    """Digests windows out of one arena, wherever its memory is."""

    @abstractmethod
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

    @abstractmethod
    def digest_rows(self, rows: WindowRows) -> int:
        """The same of rows that lie anywhere in the arena."""


class WindowDigester(Digester):
    """Digests windows out of one arena in host memory, on the calling thread and without the GIL.

    memory: the arena's bytes, uint8 [slabs * slab_bytes], shared and never copied. sizes: of units
    on the wire; the layout's own by default.
    """

    def __init__(
        self, memory: NDArray[np.uint8], layout: CacheLayout, sizes: UnitSizes | None = None
    ) -> None:
        longest = max(layout.block_bytes, layout.state_layer_bytes) // _WORD
        self._rows = RowDigester(memory, longest)
        self._windows = CompiledDigester(self._rows, window_geometry(layout, sizes))

    def digest(
        self,
        room: int,
        generation: int,
        header: WindowHeader,
        pages: Sequence[int],
        slot: int | None,
    ) -> int:
        return self._windows.digest(
            room,
            generation,
            header.first_layer,
            header.end_layer,
            header.first_page,
            pages,
            slot,
        )

    def digest_rows(self, rows: WindowRows) -> int:
        return self._rows.digest(rows.offsets, rows.lengths, rows.seeds)
