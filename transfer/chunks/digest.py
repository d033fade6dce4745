"""Digests of layer chunks: they show if the arrived bytes equal the sent ones, each in its place.

A block's sum is multilinear over its 64-bit words, sum(word[i] * key[i]) mod 2^64 with odd keys. It
costs one multiply-add a word, in any order, so a CPU (cpp_cache/digest) or a GPU computes it at
memory speed. A summed part is one head's share of a block, a part of it without heads, or the state
of one layer.

The sum is mixed with (transfer id, generation, layer, logical page and head, or state), so right
bytes in a wrong place fail. A chunk's digest is the sum of its parts' digests. It does not depend
on the number of ranks: heads are counted over all of them. It finds accidents (flipped, swapped,
stale, missing bytes), not forgers.

Owns a view of the arena's bytes. Knows no peers. Thread rule: calls of one digester may run in
parallel. Invariant: every summed part is a whole number of 64-bit words, by the alignment of parts.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from tasuki.pycache._cpp_cache import GpuDigester, RowDigester, WindowGeometry
from tasuki.pycache._cpp_cache import WindowDigester as CompiledDigester
from tasuki.pycache.layout import CacheLayout

from .chunk import ChunkHeader
from .descriptors import UnitSizes

MASK = 2**64 - 1
_GOLDEN = 0x9E3779B97F4A7C15
_NOTHING = np.empty(0, dtype=np.int64)
_WORD = 8
"""Bytes of a word, the unit of summing in a digest."""
_STATE = 2**32
"""Number of a state in a digest, in place of a page's index; no prompt has so many pages."""
_HEAD_SHIFT = 33
"""Left shift in bits for a head's number, so it lies above the number of a page or a state."""
Parts = list[tuple[int, int, int]]
"""Parts of a layer, each summed by itself: (start in page 0 or slot 0, length, bits naming its head
or the state). Start and length are in 64-bit words."""


def splitmix64(value: int) -> int:
    """Mix a 64-bit integer: a bijection; every input bit affects every output bit."""
    value = (value + _GOLDEN) & MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & MASK
    return value ^ (value >> 31)


def splitmix64_all(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return splitmix64 (a bijective mix of 64 bits) of each value."""
    return _mixed(values + np.uint64(_GOLDEN))


def word_keys(count: int) -> NDArray[np.uint64]:
    """Return the odd factor of each of the first `count` words of a part, [count] uint64: a mix of
    the word's index, with the lowest bit set."""
    index = np.arange(1, count + 1, dtype=np.uint64)
    return _mixed(index * np.uint64(_GOLDEN)) | np.uint64(1)


def _mixed(value: NDArray[np.uint64]) -> NDArray[np.uint64]:
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return value ^ (value >> np.uint64(31))


@dataclass(frozen=True)
class ChunkRows:
    """Rows of a layer chunk in the arena, each summed by itself for the digest; int64 [rows] each.

    offsets, lengths: start and length of each row in 64-bit words. seeds: bits mixed with each
    row's sum, to name its place in the prompt.
    """

    offsets: NDArray[np.int64]
    lengths: NDArray[np.int64]
    seeds: NDArray[np.int64]


@dataclass(frozen=True)
class ArenaChunk:
    """Layer chunk with its page and slot ids in an arena. slot: None unless
    header.carries_state."""

    transfer_id: int
    generation: int
    header: ChunkHeader
    pages: tuple[int, ...]
    slot: int | None

    @property
    def places(self) -> tuple[int, int, int, int, int, tuple[int, ...], int | None]:
        """Return this chunk's values in the order taken by compiled code."""
        header = self.header
        return (
            self.transfer_id,
            self.generation,
            header.first_layer,
            header.end_layer,
            header.first_page,
            self.pages,
            self.slot,
        )


Digestible: TypeAlias = ArenaChunk | ChunkRows


def chunk_rows(geometry: WindowGeometry, chunk: ArenaChunk) -> ChunkRows:
    """Return the rows of one layer chunk, to be summed for its digest. geometry: a result of
    chunk_geometry(). REQUIRES: ids are inside the arena."""
    count, table = geometry.rows([chunk.places])
    return ChunkRows(*table[:3, :count])


def place_seeds(
    transfer_id: int, generation: int, layer: int, places: NDArray[np.int64], head: int
) -> NDArray[np.uint64]:
    """Return the bits to mix, in a digest, with one head's sum in each page. places: logical
    indices of the pages. head: number of the head."""
    seed = np.uint64(_layer_seed(transfer_id, generation, layer) ^ head << _HEAD_SHIFT)
    return splitmix64_all(seed ^ places.astype(np.uint64))


def state_seeds(
    transfer_id: int, generation: int, layer: int, parts: NDArray[np.int64]
) -> NDArray[np.uint64]:
    """Return the bits to mix, in a digest, with the sum of each part of a layer's state. parts:
    numbers of the parts."""
    seed = np.uint64(_layer_seed(transfer_id, generation, layer) ^ _STATE)
    return splitmix64_all(seed ^ parts.astype(np.uint64) << np.uint64(_HEAD_SHIFT))


def _layer_seed(transfer_id: int, generation: int, layer: int) -> int:
    return splitmix64(splitmix64(splitmix64(transfer_id) ^ generation) ^ layer)


def layer_parts(layout: CacheLayout, layer: int, lengths: UnitSizes) -> tuple[Parts, Parts]:
    """Return (parts of page 0, parts of slot 0) of one layer; either may be empty. lengths: bytes
    of each unit on the wire, counted from the unit's beginning."""
    of_page: Parts = []
    of_slot: Parts = []
    if layout.layers[layer].page:
        begin = layout.page_span(layer, 0).offset
        of_page = [
            ((begin + row.offset) // _WORD, row.length // _WORD, number << _HEAD_SHIFT)
            for number, row in enumerate(lengths.block_rows(layer))
        ]
    if layout.layers[layer].slot:
        begin = layout.state_span(layer, 0).offset // _WORD
        of_slot = [(begin, lengths.state_length(layer) // _WORD, _STATE)]
    return of_page, of_slot


def chunk_geometry(layout: CacheLayout, sizes: UnitSizes | None = None) -> WindowGeometry:
    """Return the compiled computation of a chunk's rows, for an arena with this layout. sizes:
    bytes of each unit on the wire, counted from the unit's beginning; None: whole units."""
    lengths = layout if sizes is None else sizes
    return WindowGeometry(
        [layer_parts(layout, layer, lengths) for layer in range(len(layout.layers))],
        layout.block_bytes // _WORD,
        layout.slab_bytes // _WORD,
    )


class Digester(ABC):
    """Digester (of 64 bits) of layer chunks in one arena, in host or GPU memory."""

    @property
    def of_gpu(self) -> GpuDigester | None:
        """Return the compiled digester for a GPU's transfers; None for an arena in host memory."""
        return None

    @abstractmethod
    def digest_all(self, chunks: Sequence[ArenaChunk]) -> list[int]:
        """Return the 64-bit digest of each chunk, in one call for any number of them.

        REQUIRES: ids are inside the arena.
        """

    @abstractmethod
    def digest_rows(self, rows: ChunkRows) -> int:
        """Return the 64-bit digest of one chunk given as rows at any place in the arena."""

    def digest_each(self, chunks: Sequence[Digestible]) -> list[int]:
        """Return the digest of each chunk. Chunks given by ids share one call of digest_all; chunks
        given as rows are digested one by one."""
        placed = [chunk for chunk in chunks if isinstance(chunk, ArenaChunk)]
        found = iter(self.digest_all(placed) if placed else [])
        return [
            next(found) if isinstance(chunk, ArenaChunk) else self.digest_rows(chunk)
            for chunk in chunks
        ]


class ChunkDigester(Digester):
    """Digester of one arena in host memory; runs on the calling thread without the GIL.

    memory: the arena's bytes, uint8 [slabs * slab_bytes], shared and never copied. sizes: sizes of
    units on the wire; the layout's own by default.
    """

    def __init__(
        self, memory: NDArray[np.uint8], layout: CacheLayout, sizes: UnitSizes | None = None
    ) -> None:
        self._rows = RowDigester(memory, layout.longest_row // _WORD)
        self._windows = CompiledDigester(self._rows, chunk_geometry(layout, sizes))

    def digest_all(self, chunks: Sequence[ArenaChunk]) -> list[int]:
        return self._windows.digest_all([chunk.places for chunk in chunks])

    def digest_rows(self, rows: ChunkRows) -> int:
        return self._rows.digest(rows.offsets, rows.lengths, rows.seeds)
