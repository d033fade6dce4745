"""What digests are summed over where ranks hand over: one head of a block, or of a state.

Pure. A part's key names the head in the whole model, and which copy of it, so that a sum says the
same whoever of the ranks had the bytes.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from tasuki.pycache.layout import CacheLayout, LayerKind
from tasuki.pycache.rank_layout import key_heads

from .links import RankLink, rank_links
from .pieces import LinkPieces

_NOTHING: dict[str, Any] = {"kv": range(0), "keys": range(0), "values": range(0), "carry": False}
"""That a link may have."""


@dataclass(frozen=True)
class HeadPart:
    """`length` bytes at `begin` of a block, or of a slot, in the arena of the sender's rank; of a
    block those whose page has its turn: page % copies == turn. number: of head and copy, among all
    of a layer's blocks, or of its states."""

    rank: int
    begin: int
    length: int
    number: int
    copies: int = 1
    turn: int = 0


def block_parts(layout: CacheLayout, senders: int, receivers: int) -> list[HeadPart]:
    """Of a page in one layer, each receiver rank's. layout: of one rank that has all."""
    copies = max(1, receivers // layout.kv_heads)
    found = []
    for link in rank_links(layout, senders, receivers):
        for head in link.kv:
            of_head = replace(link, **_NOTHING | {"kv": range(head, head + 1)})
            (piece,) = LinkPieces(layout, senders, receivers, of_head).of_block()
            number = head + link.target % copies * layout.kv_heads
            found.append(
                HeadPart(link.source, piece.source, piece.length, number, link.copies, link.turn)
            )
    return found


def state_parts(layout: CacheLayout, senders: int, receivers: int, layer: int) -> list[HeadPart]:
    """Of one layer in a slot, each receiver rank's. layout: of one rank that has all."""
    found = []
    for link in rank_links(layout, senders, receivers):
        for of_head, numbers in _heads(layout, link, layer):
            pieces = LinkPieces(layout, senders, receivers, of_head).of_state(layer)
            for piece, number in zip(pieces, numbers, strict=True):
                found.append(HeadPart(link.source, piece.source, piece.length, number))
    return found


def _heads(
    layout: CacheLayout, link: RankLink, layer: int
) -> Iterator[tuple[RankLink, tuple[int, ...]]]:
    """The link of each head alone, and numbers of its parts of that layer's state: [q | k | v] of
    the convolution, then the recurrent state; of a draft layer, what each receiver rank carries."""
    keys, values = key_heads(layout), layout.value_heads
    if layout.layer_kinds[layer] is LayerKind.DRAFT:
        if link.carry:
            yield replace(link, **_NOTHING | {"carry": True}), (link.target,)
        return
    for head in link.keys:
        yield replace(link, **_NOTHING | {"keys": range(head, head + 1)}), (head, keys + head)
    for head in link.values:
        first = 2 * keys + head
        alone = replace(link, **_NOTHING | {"values": range(head, head + 1)})
        yield alone, (first, first + values)
