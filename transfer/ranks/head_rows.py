"""Digests of layer chunks by heads, for transfers between nodes of several ranks.

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
"""Heads of a link without any, to be replaced by one head."""


@dataclass(frozen=True)
class HeadPart:
    """Summed part of a digest between nodes of several ranks: one head of a block, or of a state.

    Pure. A part's key names the head in the whole model, and its copy. So a sum is the same on any
    rank with the bytes.

    rank, begin, length: `length` bytes at `begin` of a block, or of a slot, in the arena of the
    sender's rank. copies, turn: for blocks, the part covers pages with page % copies == turn.
    number: number of head and copy, among all parts of a layer's blocks, or of its states.
    """

    rank: int
    begin: int
    length: int
    number: int
    copies: int = 1
    turn: int = 0


def block_parts(layout: CacheLayout, senders: int, receivers: int) -> list[HeadPart]:
    """Return the parts of a page in one layer for each receiver rank. layout: one rank's, with all
    heads."""
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
    """Return the parts of one layer in a slot for each receiver rank. layout: one rank's, with all
    heads."""
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
    """Yield the link of each head alone, and the numbers of its parts of the layer's state.

    Parts are [q | k | v] of the convolution, then the recurrent state; for a draft layer, the bytes
    carried by each receiver rank.
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
"""Code in notifications for a layer chunk digested by heads, in place of the precision's code."""
_WORD = 8
_NO_ROWS = np.empty(0, dtype=np.int64)
Indices = NDArray[np.int64]


@dataclass(frozen=True)
class _State:
    """Parts of one layer in slot 0: their beginnings in the region, lengths and numbers."""

    begins: Indices
    lengths: Indices
    numbers: Indices


class HeadRows:
    """Rows of layer chunks by heads of the whole model, for digests between nodes of several ranks.

    A chunk's sum adds one head of a block, or of a state, after another, each mixed with its place
    in the whole model. It is equal on both nodes, for any numbers of ranks, if each byte of each of
    the receiver's ranks is right. Knows spans; no memory, no peers. Pure.

    ours: spans of this node's ranks. receivers: number of receiving ranks; with this node's own
    number, the rows cover arrived bytes. Raises ValueError if heads cannot be shared out or are no
    whole words.
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
