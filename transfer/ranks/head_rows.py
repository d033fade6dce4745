"""Digests of layer chunks computed head by head, for transfers between nodes of several ranks.

Pure.
"""

from collections.abc import Callable, Iterable

import numpy as np
from numpy.typing import NDArray

from tasuki.pycache.parts import LayerCache
from tasuki.transfer.chunks.digest import ArenaChunk, ChunkRows, place_seeds, state_seeds

from .links import RankLink, Segment
from .region import RankSpans

Heads = list[tuple[int, Segment]]
"""Heads of a layer's block or state, whole parts too, each with the rank that has it."""


def heads_of(
    senders: int, receivers: int, segments: Callable[[RankLink], Iterable[Segment]]
) -> Heads:
    """Return the heads of one layer's block or state, for all receiver ranks.

    Pure. A head's number names it in the whole model, and its copy. So the sum is the same on any
    rank with the bytes. segments: returns those of a link, RankLink.of_block() or of_state().
    senders, receivers: numbers of ranks. Raises ValueError if heads cannot be divided among the
    ranks, or are no whole 64-bit words.
    """
    links = (RankLink(s, t, senders, receivers) for s in range(senders) for t in range(receivers))
    found = [(link.source, head) for link in links for some in segments(link) for head in some.each]
    if any(head.source % _WORD or head.size % _WORD for _, head in found):
        raise ValueError("a head of this model's states is no whole number of 64-bit words")
    return found


BY_HEADS = 64
"""Code in notifications, in place of the precision's: digested head by head."""
_WORD = 8
_NO_ROWS = np.empty(0, dtype=np.int64)
Indices = NDArray[np.int64]


class _State:
    """Parts of one layer's state in slot 0. begins: byte offsets in the region of all ranks.
    lengths: bytes. numbers: number of each part in the whole model."""

    def __init__(self, ours: RankSpans, layer: int, heads: Heads) -> None:
        first = ours.part.state_span(layer, 0).offset
        rows = [(first + ours.base(rank) + h.source, h.size, h.number) for rank, h in heads]
        self.begins, self.lengths, self.numbers = np.array(rows, dtype=np.int64).T


class HeadRows:
    """Rows of a layer chunk, one for each head of the whole model, for digests between nodes of
    several ranks.

    A chunk's digest sums every head of its blocks and states, each mixed with its place in the
    whole model. It is equal on both nodes, for any numbers of ranks, if every byte on each receiver
    rank is right. Knows the places of the ranks' arenas; no memory, no peers. Pure.

    ours: places of the arenas of this node's ranks. receivers: number of receiving ranks; this
    node's own number on the receiving node. Raises ValueError if heads cannot be divided among the
    ranks or are no whole 64-bit words.
    """

    def __init__(self, ours: RankSpans, receivers: int) -> None:
        self._ours = ours
        ranks = ours.ranks, receivers
        blocks: dict[LayerCache, Heads] = {}
        states: dict[LayerCache, Heads] = {}
        # Layers of a kind have the same parts, at a constant distance.
        for cache in dict.fromkeys(ours.layout.layers):
            blocks[cache] = heads_of(*ranks, lambda link, of=cache: link.of_block(of))  # type: ignore[misc]
            states[cache] = heads_of(*ranks, lambda link, of=cache: link.of_state(of))  # type: ignore[misc]
        layers = ours.layout.layers
        self._blocks = [blocks[cache] for cache in layers]
        self._states = {
            layer: _State(ours, layer, states[cache])
            for layer, cache in enumerate(layers)
            if cache.slot
        }

    def of_chunk(self, chunk: ArenaChunk) -> ChunkRows:
        header, part = chunk.header, self._ours.part
        places = np.arange(header.first_page, header.first_page + len(chunk.pages))
        pages = np.asarray(chunk.pages, dtype=np.int64)
        offsets, lengths, seeds = [_NO_ROWS], [_NO_ROWS], [_NO_ROWS]

        def add(begins: Indices, sizes: Indices, mixed: NDArray[np.uint64]) -> None:
            offsets.append(begins // _WORD)
            lengths.append(sizes // _WORD)
            seeds.append(mixed.view(np.int64))

        for layer in range(header.first_layer, header.end_layer):
            cache = self._ours.layout.layers[layer]
            identity = (chunk.transfer_id, chunk.generation, layer)
            if cache.page:
                begins = part.page_span(layer, 0).offset + pages * part.block_bytes
                for rank, head in self._blocks[layer]:
                    mine = places % head.copies == head.turn
                    own = self._ours.base(rank) + head.source + begins[mine]
                    mixed = place_seeds(*identity, places[mine], head.number)
                    add(own, np.full(len(own), head.size), mixed)
            if cache.slot and chunk.slot is not None:
                state = self._states[layer]
                further = chunk.slot * part.slab_bytes
                mixed = state_seeds(*identity, state.numbers)
                add(state.begins + further, state.lengths, mixed)
        return ChunkRows(*(np.concatenate(rows) for rows in (offsets, lengths, seeds)))
