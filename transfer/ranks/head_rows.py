"""Digests of windows by heads of the whole model, where ranks hand over or are handed to.

A window's sum is that of one head of a block, or of a state, after another, each mixed with where
it belongs in the whole model: equal on both nodes, whatever numbers of ranks they have, if each
byte of each of the receiver's ranks is right. Knows spans; no memory, no peers. Pure.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tasuki.pycache.layout import LayerKind
from tasuki.transfer.windows.digest import (
    ArenaWindow,
    WindowRows,
    place_seeds,
    state_seeds,
)

from .head_parts import HeadPart, block_parts, state_parts
from .spans import RankSpans

BY_HEADS = 64
"""Stands in notifications where the precision's code would: the window is digested by heads."""
_WORD = 8
_NOTHING = np.empty(0, dtype=np.int64)
Indices = NDArray[np.int64]


@dataclass(frozen=True)
class _State:
    """Of one layer in slot 0, each part's: where it begins in the region, its length, its
    number."""

    begins: Indices
    lengths: Indices
    numbers: Indices


class HeadRows:
    """Of what ranks of `ours` send to so many receivers, or, with its own number of them, of what
    has landed there. Raises ValueError where heads cannot be shared out or are no whole words."""

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
            # Layers of a kind have the same parts, so many bytes further on.
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

    def of_window(self, window: ArenaWindow) -> WindowRows:
        header, part = window.header, self._ours.part
        places = np.arange(header.first_page, header.first_page + len(window.pages))
        pages = np.asarray(window.pages, dtype=np.int64)
        offsets, lengths, seeds = [_NOTHING], [_NOTHING], [_NOTHING]

        def add(begins: Indices, sizes: Indices, mixed: NDArray[np.uint64]) -> None:
            offsets.append(begins // _WORD)
            lengths.append(sizes // _WORD)
            seeds.append(mixed.view(np.int64))

        for layer in range(header.first_layer, header.end_layer):
            kind = self._ours.layout.layer_kinds[layer]
            identity = (window.room, window.generation, layer)
            if kind.keeps_pages:
                begins = part.page_span(layer, 0).offset + pages * part.block_bytes
                for head in self._block:
                    mine = places % head.copies == head.turn
                    own = self._ours.base(head.rank) + head.begin + begins[mine]
                    mixed = place_seeds(*identity, places[mine], head.number)
                    add(own, np.full(len(own), head.length), mixed)
            if kind.keeps_state and window.slot is not None:
                state = self._states[layer]
                further = window.slot * part.slab_bytes
                mixed = state_seeds(*identity, state.numbers)
                add(state.begins + further, state.lengths, mixed)
        return WindowRows(*(np.concatenate(rows) for rows in (offsets, lengths, seeds)))
