"""Where the bytes of a link lie: in the sender's arena, and in the receiver's.

Pure. A head is one run of a page's block, of the recurrent state and of each of the convolution's
three parts, whose local order is [q | k | v] of the rank's own heads.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from tasuki.pycache.layout import CacheLayout, SlotColumn, itemsize
from tasuki.pycache.rank_layout import key_heads, rank_layout
from tasuki.pycache.shares import share

from .links import RankLink


@dataclass(frozen=True)
class Piece:
    """`length` bytes, at those offsets of the two arenas' page block or slot column."""

    source: int
    target: int
    length: int


@dataclass(frozen=True)
class LinkPieces:
    """Of a link between nodes of so many ranks. layout: of one rank that has all. Offsets are from
    the begin of a page's block in one layer, or of a slot."""

    layout: CacheLayout
    senders: int
    receivers: int
    link: RankLink

    def of_block(self) -> Iterator[Piece]:
        """Of a page in one layer. REQUIRES: the link sends that page."""
        if self.link.kv:
            whole = self.layout
            yield self._run(self.link.kv, whole.kv_heads, whole.head_bytes)

    def of_state(self, layer: int) -> Iterator[Piece]:
        """Of the columns of one layer in a slot."""
        ours = rank_layout(self.layout, self.senders, self.link.source)
        theirs = rank_layout(self.layout, self.receivers, self.link.target)
        for source, target in zip(_columns(ours, layer), _columns(theirs, layer), strict=True):
            for piece in self._of_column(source.name, ours, theirs):
                yield Piece(
                    source.offset + piece.source, target.offset + piece.target, piece.length
                )

    def _of_column(self, name: str, ours: CacheLayout, theirs: CacheLayout) -> Iterator[Piece]:
        whole, link = self.layout, self.link
        if name == "carry":
            if link.carry:
                yield Piece(0, 0, whole.carry_width * itemsize(whole.carry_dtype))
        elif name == "ssm":
            head = whole.value_dim * whole.key_dim * itemsize(whole.ssm_dtype)
            if link.values:
                yield self._run(link.values, whole.value_heads, head)
        else:
            yield from self._of_conv(ours, theirs)

    def _of_conv(self, ours: CacheLayout, theirs: CacheLayout) -> Iterator[Piece]:
        whole, link, keys = self.layout, self.link, key_heads(self.layout)
        column = whole.conv_columns * itemsize(whole.conv_dtype)
        key, value = whole.key_dim * column, whole.value_dim * column
        source, target = key_heads(ours) * key, key_heads(theirs) * key
        # [q | k | v], each cut by itself.
        of_keys, of_values = (link.keys, keys, key), (link.values, whole.value_heads, value)
        for part, (heads, count, size) in enumerate((of_keys, of_keys, of_values)):
            if heads:
                piece = self._run(heads, count, size)
                yield Piece(
                    part * source + piece.source, part * target + piece.target, piece.length
                )

    def _run(self, heads: range, count: int, size: int) -> Piece:
        """Of these heads, of `count` in all, whose bytes are `size` each."""
        source = share(count, self.senders, self.link.source).start
        target = share(count, self.receivers, self.link.target).start
        return Piece(
            (heads.start - source) * size, (heads.start - target) * size, len(heads) * size
        )


def _columns(layout: CacheLayout, layer: int) -> list[SlotColumn]:
    return [column for column in layout.columns if column.layer == layer]
