"""Digests of layer chunks computed head by head, for transfers between nodes of several ranks.

Pure.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tasuki.pycache.layout import CacheLayout, LayerKind, key_heads
from tasuki.transfer.chunks.digest import ArenaChunk, ChunkRows, place_seeds, state_seeds

from .links import LinkSegments, RankLink, rank_links
from .region import RankSpans

_NO_HEADS: dict[str, Any] = {"kv": range(0), "keys": range(0), "values": range(0), "carry": False}
"""Fields of a link without any heads; one of them is then set to a single head."""


@dataclass(frozen=True)
class HeadPart:
    """Part of a chunk summed for a digest between nodes of several ranks: one head of a block, or
    of a state.

    Pure. The part's number names the head in the whole model, and its copy. So the sum is the same
    on any rank with the bytes.

    rank: the rank with the bytes in its arena. begin, length: byte range within a block, or within
    a slot. copies, turn: for blocks, the part covers pages with page % copies == turn. number:
    number of head and copy, among all parts of a layer's blocks, or of its states.
    """

    rank: int
    begin: int
    length: int
    number: int
    copies: int = 1
    turn: int = 0


def block_parts(layout: CacheLayout, senders: int, receivers: int) -> list[HeadPart]:
    """Return the parts of one page in one layer, for all receiver ranks. layout: layout of a single
    rank with all heads. senders, receivers: numbers of ranks."""
    copies = max(1, receivers // layout.kv_heads)
    found = []
    for link in rank_links(layout, senders, receivers):
        for head in link.kv:
            of_head = replace(link, **_NO_HEADS | {"kv": range(head, head + 1)})
            (segment,) = LinkSegments(layout, senders, receivers, of_head).of_block()
            number = head + link.target % copies * layout.kv_heads
            found.append(
                HeadPart(
                    link.source, segment.source, segment.length, number, link.copies, link.turn
                )
            )
    return found


def state_parts(layout: CacheLayout, senders: int, receivers: int, layer: int) -> list[HeadPart]:
    """Return the parts of one layer's state in a slot, for all receiver ranks. layout: layout of a
    single rank with all heads. senders, receivers: numbers of ranks."""
    found = []
    for link in rank_links(layout, senders, receivers):
        for of_head, numbers in _heads(layout, link, layer):
            segments = LinkSegments(layout, senders, receivers, of_head).of_state(layer)
            for segment, number in zip(segments, numbers, strict=True):
                found.append(HeadPart(link.source, segment.source, segment.length, number))
    return found


def _heads(
    layout: CacheLayout, link: RankLink, layer: int
) -> Iterator[tuple[RankLink, tuple[int, ...]]]:
    """Yield, for each head of the link, a link with this head alone and the numbers of the head's
    parts in the layer's state.

    Parts are [q | k | v] of the convolution, then the recurrent state. A draft layer has one part
    for each receiver rank: the carried bytes.
    """
    keys, values = key_heads(layout), layout.value_heads
    if layout.layer_kinds[layer] is LayerKind.DRAFT:
        if link.carry:
            yield replace(link, **_NO_HEADS | {"carry": True}), (link.target,)
        return
    for head in link.keys:
        yield replace(link, **_NO_HEADS | {"keys": range(head, head + 1)}), (head, keys + head)
    for head in link.values:
        first = 2 * keys + head
        alone = replace(link, **_NO_HEADS | {"values": range(head, head + 1)})
        yield alone, (first, first + values)


BY_HEADS = 64
"""Code in notifications, in place of the precision's code: this layer chunk is digested head by
head."""
_WORD = 8
_NO_ROWS = np.empty(0, dtype=np.int64)
Indices = NDArray[np.int64]


@dataclass(frozen=True)
class _State:
    """Parts of one layer's state in slot 0. begins: byte offsets in the region of all ranks.
    lengths: bytes. numbers: number of each part in the whole model."""

    begins: Indices
    lengths: Indices
    numbers: Indices


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
        whole = ours.layout
        self._ours = ours
        self._block = block_parts(whole, ours.ranks, receivers)
        self._states: dict[int, _State] = {}
        every = [*self._block]
        first_of: dict[LayerKind, tuple[int, list[HeadPart]]] = {}
        for layer, kind in enumerate(whole.layer_kinds):
            if not kind.keeps_state:
                continue
            if kind not in first_of:
                first_of[kind] = layer, state_parts(whole, ours.ranks, receivers, layer)
            # Layers of a kind have the same parts, at a constant distance.
            first, parts = first_of[kind]
            further = ours.part.state_span(layer, 0).offset - ours.part.state_span(first, 0).offset
            begins = [ours.base(part.rank) + part.begin + further for part in parts]
            self._states[layer] = _State(
                np.array(begins, dtype=np.int64),
                np.array([part.length for part in parts], dtype=np.int64),
                np.array([part.number for part in parts], dtype=np.int64),
            )
            every += parts
        if any(part.begin % _WORD or part.length % _WORD for part in every):
            raise ValueError("a head of this model's states is no whole number of 64-bit words")

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
            kind = self._ours.layout.layer_kinds[layer]
            identity = (chunk.transfer_id, chunk.generation, layer)
            if kind.keeps_pages:
                begins = part.page_span(layer, 0).offset + pages * part.block_bytes
                for head in self._block:
                    mine = places % head.copies == head.turn
                    own = self._ours.base(head.rank) + head.begin + begins[mine]
                    mixed = place_seeds(*identity, places[mine], head.number)
                    add(own, np.full(len(own), head.length), mixed)
            if kind.keeps_state and chunk.slot is not None:
                state = self._states[layer]
                further = chunk.slot * part.slab_bytes
                mixed = state_seeds(*identity, state.numbers)
                add(state.begins + further, state.lengths, mixed)
        return ChunkRows(*(np.concatenate(rows) for rows in (offsets, lengths, seeds)))
