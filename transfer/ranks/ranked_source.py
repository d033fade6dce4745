"""Source of layer chunks for nodes with several ranks, and the segments of each chunk.

Owns no memory. Thread rule: ChunkSource's.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from tasuki.transfer.chunks.chunk import (
    ChunkHeader,
    Destination,
    FinishedLayers,
    LayerChunk,
    Run,
    cut,
    granted_pages,
)
from tasuki.transfer.chunks.descriptors import Segments, UnitSizes, merge_segments
from tasuki.transfer.chunks.digest import ArenaChunk, ChunkRows, Digester

from .head_rows import BY_HEADS, HeadRows
from .links import RankLink, Segment, rank_links
from .region import RankSpans

_NOTHING = np.empty((0, 3), dtype=np.int64)


class RankedSegments:
    """Segments of a layer chunk from the sender's ranks to the receiver's, for any numbers of
    ranks.

    Knows the places of both nodes' arenas and ids; nothing of peers or transfers. Pure. Raises
    ValueError if the heads cannot be divided among the ranks. REQUIRES: both nodes have one model.
    """

    def __init__(self, ours: RankSpans, theirs: RankSpans) -> None:
        self._ours = ours
        self._theirs = theirs
        links = rank_links(ours.layout, ours.ranks, theirs.ranks)
        caches = dict.fromkeys(ours.layout.layers)
        blocks = {c: [self._based(k, s) for k in links for s in k.of_block(c)] for c in caches}
        states = {c: [self._based(k, s) for k in links for s in k.of_state(c)] for c in caches}
        self._blocks = [blocks[cache] for cache in ours.layout.layers]
        self._states = [states[cache] for cache in ours.layout.layers]

    def _based(self, link: RankLink, segment: Segment) -> Segment:
        """Return the link's segment with offsets in the memory regions of both nodes."""
        return replace(
            segment,
            source=self._ours.base(link.source) + segment.source,
            target=self._theirs.base(link.target) + segment.target,
        )

    def of_chunk(
        self,
        header: ChunkHeader,
        local_pages: Sequence[int],
        remote_pages: Sequence[int],
        slots: tuple[int, int] | None,
    ) -> Segments:
        """Return the chunk's segments, [n, 3] int64 of (local offset, remote offset, length).
        slots: (local slot, remote slot); None: no state is sent."""
        local, remote = np.asarray(local_pages, np.int64), np.asarray(remote_pages, np.int64)
        logical = np.arange(header.first_page, header.first_page + len(local))
        parts = [_NOTHING]
        for layer in range(header.first_layer, header.end_layer):
            cache = self._ours.layout.layers[layer]
            if cache.page:
                parts += self._of_pages(layer, logical, local, remote)
            if cache.slot and slots is not None:
                parts.append(self._of_state(layer, *slots))
        return merge_segments(np.concatenate(parts))

    def _of_pages(
        self,
        layer: int,
        logical: NDArray[np.int64],
        local: NDArray[np.int64],
        remote: NDArray[np.int64],
    ) -> list[Segments]:
        ours, theirs = self._ours.part, self._theirs.part
        here = ours.page_span(layer, 0).offset + local * ours.block_bytes
        there = theirs.page_span(layer, 0).offset + remote * theirs.block_bytes
        found = []
        for segment in self._blocks[layer]:
            mine = logical % segment.copies == segment.turn
            lengths = np.full(int(mine.sum()), segment.length)
            columns = (here[mine] + segment.source, there[mine] + segment.target, lengths)
            found.append(np.stack(columns, axis=1))
        return found

    def _of_state(self, layer: int, local: int, remote: int) -> Segments:
        here = self._ours.part.state_span(layer, local).offset
        there = self._theirs.part.state_span(layer, remote).offset
        rows = [(here + p.source, there + p.target, p.length) for p in self._states[layer]]
        return np.array(rows, dtype=np.int64).reshape(-1, 3)


class RankedSource:
    """Source of layer chunks between two nodes, if at least one has several ranks.

    Bytes go straight from their place on each sender rank to their place on each receiver rank.
    Implements ChunkSource, with its thread rule. REQUIRES: layers of earlier forwards were finished
    on every rank of this node when planned. For other layers the sender's step counter counts a
    layer once the slowest rank has finished it.
    """

    code = BY_HEADS
    in_place = False
    most_together = 64

    def __init__(self, ours: RankSpans, theirs: RankSpans, digester: Digester) -> None:
        """ours, theirs: places of the arenas of both nodes' ranks. digester: digester of the region
        with all of this node's arenas. Raises ValueError if the heads cannot be divided among the
        ranks."""
        self.digester = digester
        self._ours = ours
        self._segments = RankedSegments(ours, theirs)
        self._rows = HeadRows(ours, theirs.ranks)

    @property
    def sizes(self) -> UnitSizes:
        """Return the unit sizes, each byte once; receiving ranks may need several copies."""
        return self._ours.layout

    def toward(self, theirs: RankSpans, slabs: int) -> "RankedSource":
        return RankedSource(self._ours, theirs, self.digester)

    def windows(
        self, plan: FinishedLayers, runs: Sequence[Run], first_sequence: int
    ) -> list[LayerChunk]:
        return cut(plan, runs, first_sequence)

    def has_room(self, peer: str) -> bool:
        return True

    def load(self, peer: str, chunk: LayerChunk) -> "_RankedChunk":
        return _RankedChunk(self._segments, self._rows, chunk)


class _RankedChunk:
    def __init__(self, segments: RankedSegments, rows: HeadRows, chunk: LayerChunk) -> None:
        self._segments = segments
        self._rows = rows
        self._chunk = chunk

    def segments(self, destination: Destination) -> Segments:
        chunk, header = self._chunk, self._chunk.header
        here, there = chunk.local_slot, destination.slot
        slots = None if here is None or there is None else (here, there)
        granted = granted_pages(destination, header)
        return self._segments.of_chunk(header, chunk.local_pages, granted, slots)

    def digestible(self, transfer_id: int, generation: int) -> ChunkRows:
        chunk = self._chunk
        placed = ArenaChunk(
            transfer_id, generation, chunk.header, chunk.local_pages, chunk.local_slot
        )
        return self._rows.of_chunk(placed)

    def release(self) -> None:
        """Do nothing: the pages and the slot belong to the engine."""
