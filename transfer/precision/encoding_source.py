"""Encoded layer chunks of a sender, staged in cells (fixed-size buffers) of its own arena.

Owns the cells of the encoded chunks. Thread rule: ChunkSource's.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from tasuki.pycache._cpp_cache import WindowGeometry
from tasuki.transfer.chunks.chunk import (
    Destination,
    FinishedLayers,
    LayerChunk,
    Run,
    cut,
    granted_pages,
)
from tasuki.transfer.chunks.descriptors import Segments, merge_segments
from tasuki.transfer.chunks.digest import (
    ArenaChunk,
    ChunkRows,
    Digester,
    chunk_geometry,
    chunk_rows,
    layer_parts,
)
from tasuki.transfer.ranks.region import RankSpans
from tasuki.transfer.settings import WireSettings

from .layer_codec import LayerCodec
from .wire_layout import ALIGNMENT, WireError, WireUnits

_MOST_CELLS = 16
_LEAST_CELLS = 2
_LEAST_SLABS_LEFT = 4
_LARGEST_SHARE = 8
_MIB = 2**20


@dataclass(frozen=True)
class Cell:
    """Cell: `size` bytes of the arena from byte `offset` on, for one encoded chunk. holder: the
    peer using it."""

    offset: int
    size: int
    holder: str


class StagingBuffer:
    """Cells (fixed-size buffers) of an arena: layer chunks are encoded into a cell and posted from
    it.

    Owns the list of cells in use by holder, a peer. Knows offsets, but not the content of a cell.
    Thread rule: one thread. Invariants: every cell is free or held by one holder. A holder has at
    most half of the cells, so one stalled peer leaves the other half to the others. A cell takes
    any chunk, so no chunk waits for a gap of its size.
    """

    def __init__(self, offset: int, size: int, largest_unit: int) -> None:
        """Divide the arena's bytes [offset, offset + size) into cells. REQUIRES: two units of
        `largest_unit` bytes fit; ALIGNMENT divides offset."""
        count = min(_MOST_CELLS, size // largest_unit)
        self.cell_bytes = size // count // ALIGNMENT * ALIGNMENT
        self._free = [offset + index * self.cell_bytes for index in reversed(range(count))]
        self._count = count
        self._held: Counter[str] = Counter()

    @property
    def in_use(self) -> int:
        return self._count - len(self._free)

    def has_room(self, holder: str) -> bool:
        """Return True if take() can give this holder, a peer, a free cell."""
        return bool(self._free) and self._held[holder] < self._count // 2

    def take(self, holder: str) -> Cell:
        """Take a free cell (fixed-size buffer in the arena) for the holder, a peer. REQUIRES:
        has_room(holder)."""
        assert self.has_room(holder)
        self._held[holder] += 1
        return Cell(self._free.pop(), self.cell_bytes, holder)

    def give_back(self, cell: Cell) -> None:
        """Make a taken cell free again. Call it once for each."""
        self._free.append(cell.offset)
        self._held[cell.holder] -= 1
        if not self._held[cell.holder]:
            del self._held[cell.holder]


def slabs_kept_back(wire: WireSettings, units: WireUnits, slabs: int) -> int:
    """Return the number of slabs (fixed-size parts) kept back for encoded chunks in an arena of
    `slabs` slabs; 0 if the wire is exact. Raises WireError if too few slabs are left for the
    cache."""
    if wire.precision.exact:
        return 0
    slab = units.layout.slab_bytes
    wanted = min(-(-wire.staging_mib * _MIB // slab), slabs // _LARGEST_SHARE)
    kept = max(wanted, -(-_LEAST_CELLS * units.largest_encoded // slab))
    if slabs - kept < _LEAST_SLABS_LEFT:
        raise WireError(
            f"the arena has {slabs} slabs, of which a wire that is not exact keeps {kept} "
            f"back, and {_LEAST_SLABS_LEFT} must be left: give more --arena-mib"
        )
    return kept


_WORD = 8
Places = NDArray[np.int64]


class EncodingSource:
    """Source of encoded layer chunks. They are encoded into cells of the sender's own arena,
    because no other memory is registered.

    Owns the cells. Knows units and cells, but no transfers. Thread rule: ChunkSource's. Invariants:
    the encoded part of a chunk fits one cell. A part left exact by the precision is posted from its
    place in the arena. A cell is free again once its chunk was released.
    """

    in_place = False
    most_together = 1
    """Number of chunks to load before a post: one, because encoding another takes as long as
    sending this one."""

    def __init__(
        self,
        units: WireUnits,
        code: int,
        codec: LayerCodec,
        digester: Digester,
        cells: StagingBuffer,
    ) -> None:
        """code: number of the precision in notifications. digester: digester of units with their
        encoded lengths."""
        self.code = code
        self.cells = cells
        self.digester = digester
        self._units = units
        self._geometry = chunk_geometry(units.layout, units)
        self._codec = codec

    @property
    def sizes(self) -> WireUnits:
        return self._units

    def toward(self, theirs: RankSpans, slabs: int) -> "EncodingSource":
        if theirs.ranks > 1:
            raise ValueError("what travels encoded goes to one rank: give --wire-kv exact")
        return self

    def windows(
        self, plan: FinishedLayers, runs: Sequence[Run], first_sequence: int
    ) -> list[LayerChunk]:
        parts = [part for chunk in cut(plan, runs, 0) for part in self._parts(chunk)]
        return [
            replace(part, header=replace(part.header, sequence=sequence))
            for sequence, part in enumerate(parts, first_sequence)
        ]

    def _parts(self, chunk: LayerChunk) -> Iterator[LayerChunk]:
        """Yield the chunk in parts of at most one cell each. It is split by layers; a layer larger
        than a cell is split by pages."""
        header = chunk.header
        first, size = header.first_layer, 0
        for layer in range(header.first_layer, header.end_layer):
            more = self._encoded_bytes(chunk, layer)
            if size + more > self.cells.cell_bytes and layer > first:
                yield from self._by_pages(_of_layers(chunk, first, layer))
                first, size = layer, 0
            size += more
        yield from self._by_pages(_of_layers(chunk, first, header.end_layer))

    def _by_pages(self, chunk: LayerChunk) -> Iterator[LayerChunk]:
        header = chunk.header
        size = self._encoded_bytes(chunk, header.first_layer)
        if header.end_layer - header.first_layer > 1 or size <= self.cells.cell_bytes:
            yield chunk
            return
        form = self._units.form(header.first_layer)
        assert form is not None
        at_once = self.cells.cell_bytes // (form.runs * form.sent)
        beside = self._units.layers[header.first_layer].slot
        for start in range(0, header.pages, at_once):
            pages = chunk.local_pages[start : start + at_once]
            part = replace(header, first_page=header.first_page + start, pages=len(pages))
            segment = replace(chunk, header=part, local_pages=pages)
            # A layer's state beside its pages is sent once, with the last pages.
            if beside and start + at_once < header.pages:
                part = replace(part, carries_state=False)
                segment = replace(segment, header=part, local_slot=None)
            yield segment

    def _encoded_bytes(self, chunk: LayerChunk, layer: int) -> int:
        form, header = self._units.form(layer), chunk.header
        if form is None:
            return 0
        units = header.pages if self._units.layers[layer].page else int(header.carries_state)
        return units * form.runs * form.sent

    def has_room(self, peer: str) -> bool:
        return self.cells.has_room(peer)

    def load(self, peer: str, chunk: LayerChunk) -> "_EncodedChunk":
        cell = self.cells.take(peer)
        try:
            places = self._encode(chunk, cell)
        except BaseException:
            self.cells.give_back(cell)
            raise
        return _EncodedChunk(self._geometry, self.cells, chunk, cell, places)

    def _encode(self, chunk: LayerChunk, cell: Cell) -> Places:
        header, slot = chunk.header, chunk.local_slot
        rows = chunk_rows(self._geometry, ArenaChunk(0, 0, header, chunk.local_pages, slot))
        places = rows.offsets * _WORD
        part, offset = 0, cell.offset
        for layer in range(header.first_layer, header.end_layer):
            of_page, of_slot = layer_parts(self._units.layout, layer, self._units)
            ids = chunk.local_pages if of_page else () if slot is None else (slot,)
            parts, form = len(of_page or of_slot), self._units.form(layer)
            if ids and form is not None:
                self._codec.encode(layer, ids, offset)
                runs = len(ids) * form.runs
                own = places[part : part + len(ids) * parts].reshape(len(ids), parts)
                own[:, : form.runs] = (offset + np.arange(runs) * form.sent).reshape(len(ids), -1)
                offset += runs * form.sent
            # Whole parts, and a state beside pages, are sent from their place in the arena.
            part += len(ids) * parts + (len(of_slot) if of_page and slot is not None else 0)
        assert offset <= cell.offset + cell.size
        return places


@dataclass(frozen=True)
class _EncodedChunk:
    """Layer chunk with its encoded parts in a cell of the arena. places: byte offset in the arena
    of each posted part, encoded or not, in the chunk's row order."""

    geometry: WindowGeometry
    cells: StagingBuffer
    chunk: LayerChunk
    cell: Cell
    places: Places

    def segments(self, destination: Destination) -> Segments:
        header = self.chunk.header
        slot = destination.slot if header.carries_state else None
        there = self._rows(0, 0, granted_pages(destination, header), slot)
        return merge_segments(
            np.stack([self.places, there.offsets * _WORD, there.lengths * _WORD], axis=1)
        )

    def digestible(self, transfer_id: int, generation: int) -> ChunkRows:
        rows = self._rows(transfer_id, generation, self.chunk.local_pages, self.chunk.local_slot)
        return replace(rows, offsets=self.places // _WORD)

    def _rows(
        self, transfer_id: int, generation: int, pages: Sequence[int], slot: int | None
    ) -> ChunkRows:
        header = self.chunk.header
        chunk = ArenaChunk(transfer_id, generation, header, tuple(pages), slot)
        return chunk_rows(self.geometry, chunk)

    def release(self) -> None:
        self.cells.give_back(self.cell)


def _of_layers(chunk: LayerChunk, first: int, end: int) -> LayerChunk:
    """Return the chunk's part with layers first to end (exclusive). It can be sent once these
    layers are finished."""
    header = chunk.header
    return replace(
        chunk,
        header=replace(header, first_layer=first, end_layer=end),
        tick=chunk.tick - (header.end_layer - end),
    )
