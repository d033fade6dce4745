"""Which bytes a window is, between nodes of any numbers of ranks: pieces from where each of the
sender's ranks has them to where each of the receiver's wants them.

Knows both nodes' spans and ids; nothing of peers or rooms. Pure.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from tasuki.transfer.windows.descriptors import Pieces, merge_pieces
from tasuki.transfer.windows.window import WindowHeader

from .links import rank_links
from .pieces import LinkPieces, Piece
from .spans import RankSpans

_NOTHING = np.empty((0, 3), dtype=np.int64)


class RankedPieces:
    """Raises ValueError where the heads cannot be shared out. REQUIRES: both are of one model."""

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
        """In the nodes' regions."""
        source = self._ours.base(link.link.source) + piece.source
        return Piece(source, self._theirs.base(link.link.target) + piece.target, piece.length)

    def of_window(
        self,
        header: WindowHeader,
        local_pages: Sequence[int],
        remote_pages: Sequence[int],
        slots: tuple[int, int] | None,
    ) -> Pieces:
        """As descriptors.window_pieces; slots: (local, remote)."""
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
