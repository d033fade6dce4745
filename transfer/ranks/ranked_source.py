"""Source of layer chunks of a node with several ranks, and the bytes of each chunk.

Owns no memory. Thread rule: WindowSource's.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from tasuki.transfer.windows.descriptors import Pieces, UnitSizes, merge_pieces
from tasuki.transfer.windows.digest import ArenaWindow, Digester, WindowRows
from tasuki.transfer.windows.window import (
    Destination,
    FinishedLayers,
    Run,
    Window,
    WindowHeader,
    cut,
    granted_pages,
)

from .head_rows import BY_HEADS, HeadRows
from .links import LinkPieces, Piece, rank_links
from .region import RankSpans

_NOTHING = np.empty((0, 3), dtype=np.int64)


class RankedPieces:
    """Segments of a layer chunk between nodes of any numbers of ranks, from the sender's ranks to
    the receiver's.

    Knows both nodes' spans and ids; nothing of peers or rooms. Pure. Raises ValueError if the heads
    cannot be shared out. REQUIRES: both are of one model.
    """

    def __init__(self, ours: RankSpans, theirs: RankSpans) -> None:
        whole = ours.layout
        links = [
            LinkPieces(whole, ours.ranks, theirs.ranks, link)
            for link in rank_links(whole, ours.ranks, theirs.ranks)
        ]
        self._ours = ours
        self._theirs = theirs
        self._blocks = [
            (of_link.link, self._based(of_link, piece))
            for of_link in links
            for piece in of_link.of_block()
        ]
        self._states = {
            layer: [
                self._based(of_link, piece)
                for of_link in links
                for piece in of_link.of_state(layer)
            ]
            for layer, kind in enumerate(whole.layer_kinds)
            if kind.keeps_state
        }

    def _based(self, link: LinkPieces, piece: Piece) -> Piece:
        """Return the segment with offsets in the nodes' regions."""
        source = self._ours.base(link.link.source) + piece.source
        return Piece(source, self._theirs.base(link.link.target) + piece.target, piece.length)

    def of_window(
        self,
        header: WindowHeader,
        local_pages: Sequence[int],
        remote_pages: Sequence[int],
        slots: tuple[int, int] | None,
    ) -> Pieces:
        """Return the segments, as descriptors.window_pieces does. slots: (local, remote)."""
        local, remote = np.asarray(local_pages, np.int64), np.asarray(remote_pages, np.int64)
        logical = np.arange(header.first_page, header.first_page + len(local))
        parts = [_NOTHING]
        for layer in range(header.first_layer, header.end_layer):
            kind = self._ours.layout.layer_kinds[layer]
            if kind.keeps_pages:
                parts += self._of_pages(layer, logical, local, remote)
            if kind.keeps_state and slots is not None:
                parts.append(self._of_state(layer, *slots))
        return merge_pieces(np.concatenate(parts))

    def _of_pages(
        self,
        layer: int,
        logical: NDArray[np.int64],
        local: NDArray[np.int64],
        remote: NDArray[np.int64],
    ) -> list[Pieces]:
        ours, theirs = self._ours.part, self._theirs.part
        here = ours.page_span(layer, 0).offset + local * ours.block_bytes
        there = theirs.page_span(layer, 0).offset + remote * theirs.block_bytes
        found = []
        for link, piece in self._blocks:
            mine = logical % link.copies == link.turn
            lengths = np.full(int(mine.sum()), piece.length)
            columns = (here[mine] + piece.source, there[mine] + piece.target, lengths)
            found.append(np.stack(columns, axis=1))
        return found

    def _of_state(self, layer: int, local: int, remote: int) -> Pieces:
        here, there = local * self._ours.part.slab_bytes, remote * self._theirs.part.slab_bytes
        rows = [(here + p.source, there + p.target, p.length) for p in self._states[layer]]
        return np.array(rows, dtype=np.int64).reshape(-1, 3)


class RankedSource:
    """Source of layer chunks between two nodes, if at least one has several ranks.

    Bytes go straight from their place on each sender rank to their place on each receiver rank.
    Implements WindowSource, with its thread rule. REQUIRES: long-finished layers were finished on
    every rank of this node when planned. For other layers the sender's counter has the slowest
    rank's steps.
    """

    code = BY_HEADS
    in_place = False
    most_together = 64

    def __init__(
        self,
        ours: RankSpans,
        theirs: RankSpans,
        digester: Digester,
    ) -> None:
        """digester: the region's. Raises ValueError if the heads cannot be shared out."""
        self.digester = digester
        self._ours = ours
        self._pieces = RankedPieces(ours, theirs)
        self._rows = HeadRows(ours, theirs.ranks)

    @property
    def sizes(self) -> UnitSizes:
        """Return the sizes without copies; the receiver's ranks may need several."""
        return self._ours.layout

    def toward(self, theirs: RankSpans, slabs: int) -> "RankedSource":
        return RankedSource(self._ours, theirs, self.digester)

    def windows(
        self, plan: FinishedLayers, runs: Sequence[Run], first_sequence: int
    ) -> list[Window]:
        return cut(plan, runs, first_sequence)

    def has_room(self, peer: str) -> bool:
        return True

    def load(self, peer: str, window: Window) -> "_RankedWindow":
        return _RankedWindow(self._pieces, self._rows, window)


class _RankedWindow:
    def __init__(self, pieces: RankedPieces, rows: HeadRows, window: Window) -> None:
        self._pieces = pieces
        self._rows = rows
        self._window = window

    def pieces(self, destination: Destination) -> Pieces:
        window, header = self._window, self._window.header
        here, there = window.local_slot, destination.slot
        slots = None if here is None or there is None else (here, there)
        granted = granted_pages(destination, header)
        return self._pieces.of_window(header, window.local_pages, granted, slots)

    def digestible(self, room: int, generation: int) -> WindowRows:
        window = self._window
        placed = ArenaWindow(room, generation, window.header, window.local_pages, window.local_slot)
        return self._rows.of_window(placed)

    def release(self) -> None:
        """Do nothing: pages and slot belong to the engine."""
