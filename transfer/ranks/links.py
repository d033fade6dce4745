"""Links between the ranks of two nodes: the heads sent over each, and the places of their bytes.

Pure: both nodes derive the same links from the two numbers of ranks and the model's heads.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from tasuki.pycache.layout import CacheLayout, SlotColumn, itemsize, key_heads, rank_layout, share


@dataclass(frozen=True)
class RankLink:
    """Link from one rank of a sender to one rank of a receiver, with the heads sent over it.

    Pure: both nodes derive the same links from the two numbers of ranks and the model's heads. All
    handed-over bytes are whole heads, except a draft layer's carried bytes, present on every rank.

    source, target: rank of the sender and of the receiver. kv: KV heads sent, for the pages of the
    source's turn (sends_page). keys, values: key and value heads of the states. Heads are numbered
    as in the whole model. carry: True if the link sends a draft layer's carried bytes. copies:
    number of sender ranks with the same head; they take turns with the target's pages. turn: the
    source's number among these ranks.
    """

    source: int
    target: int
    kv: range
    keys: range
    values: range
    carry: bool
    copies: int
    turn: int

    def sends_page(self, page: int) -> bool:
        """Return True if the source rank sends this page, and not another rank with the same head.
        page: logical number of the page in its prompt."""
        return bool(self.kv) and page % self.copies == self.turn


def rank_links(layout: CacheLayout, senders: int, receivers: int) -> list[RankLink]:
    """Return the links in ascending order; two ranks without a shared head have none. layout:
    layout of a single rank with all heads. senders, receivers: numbers of ranks. Raises ValueError
    if heads cannot be divided among the ranks."""
    return [*_links(layout, senders, receivers)]


def _links(layout: CacheLayout, senders: int, receivers: int) -> Iterator[RankLink]:
    keys = key_heads(layout)
    for source in range(senders):
        for target in range(receivers):
            kv = _both(layout.kv_heads, senders, source, receivers, target)
            copies, turn = _turn(
                max(1, senders // layout.kv_heads),
                source,
                max(1, receivers // layout.kv_heads),
                target,
            )
            link = RankLink(
                source,
                target,
                kv if copies else range(0),
                _both(keys, senders, source, receivers, target),
                _both(layout.value_heads, senders, source, receivers, target),
                # Every source has the carried bytes: choose one with other links to this receiver.
                layout.draft_layers > 0 and source == target * senders // receivers,
                copies,
                turn,
            )
            if link.kv or link.keys or link.values or link.carry:
                yield link


def _turn(having: int, source: int, wanting: int, target: int) -> tuple[int, int]:
    """Return (number of source ranks taking turns to send the target its head, this source's turn);
    (0, 0) if only other ranks send it.

    having, wanting: number of sender ranks, and of receiver ranks, with a copy of one head; such
    ranks are neighbours.
    """
    own, place = source % having, target % wanting
    if wanting % having == 0:
        return (1, 0) if own == place * having // wanting else (0, 0)
    if having % wanting:
        return having, own
    each = having // wanting
    return (each, own % each) if own // each == place else (0, 0)


def _both(heads: int, senders: int, source: int, receivers: int, target: int) -> range:
    """Return the heads present both on sender rank `source` and on receiver rank `target`. heads:
    heads of the whole model."""
    first, second = share(heads, senders, source), share(heads, receivers, target)
    start, stop = max(first.start, second.start), min(first.stop, second.stop)
    return range(start, max(start, stop))


@dataclass(frozen=True)
class Segment:
    """Segment of `length` bytes. source, target: its byte offset in the page's block, or in the
    slot, on the sender and the receiver."""

    source: int
    target: int
    length: int


@dataclass(frozen=True)
class LinkSegments:
    """Places of a link's bytes in the sender's arena and in the receiver's.

    Pure. A head is one run of bytes in a page's block, in the recurrent state and in each of the
    convolution's three parts, [q | k | v]. Offsets are from the beginning of a page's block in one
    layer, or of a slot.

    layout: layout of a single rank with all heads. senders, receivers: numbers of ranks of both
    nodes.
    """

    layout: CacheLayout
    senders: int
    receivers: int
    link: RankLink

    def of_block(self) -> Iterator[Segment]:
        """Yield the segments of a page in one layer. REQUIRES: the link sends this page."""
        if self.link.kv:
            whole = self.layout
            yield self._run(self.link.kv, whole.kv_heads, whole.head_bytes)

    def of_state(self, layer: int) -> Iterator[Segment]:
        """Yield the segments of one layer's state in a slot."""
        ours = rank_layout(self.layout, self.senders, self.link.source)
        theirs = rank_layout(self.layout, self.receivers, self.link.target)
        for source, target in zip(_columns(ours, layer), _columns(theirs, layer), strict=True):
            for segment in self._of_column(source.name, ours, theirs):
                yield Segment(
                    source.offset + segment.source, target.offset + segment.target, segment.length
                )

    def _of_column(self, name: str, ours: CacheLayout, theirs: CacheLayout) -> Iterator[Segment]:
        whole, link = self.layout, self.link
        if name == "carry":
            if link.carry:
                yield Segment(0, 0, whole.carry_width * itemsize(whole.carry_dtype))
        elif name == "ssm":
            head = whole.value_dim * whole.key_dim * itemsize(whole.ssm_dtype)
            if link.values:
                yield self._run(link.values, whole.value_heads, head)
        else:
            yield from self._of_conv(ours, theirs)

    def _of_conv(self, ours: CacheLayout, theirs: CacheLayout) -> Iterator[Segment]:
        whole, link, keys = self.layout, self.link, key_heads(self.layout)
        column = whole.conv_columns * itemsize(whole.conv_dtype)
        key, value = whole.key_dim * column, whole.value_dim * column
        source, target = key_heads(ours) * key, key_heads(theirs) * key
        # [q | k | v], each cut separately.
        of_keys, of_values = (link.keys, keys, key), (link.values, whole.value_heads, value)
        for part, (heads, count, size) in enumerate((of_keys, of_keys, of_values)):
            if heads:
                segment = self._run(heads, count, size)
                yield Segment(
                    part * source + segment.source, part * target + segment.target, segment.length
                )

    def _run(self, heads: range, count: int, size: int) -> Segment:
        """Return the segment of these heads. count: number of heads in the whole model. size: bytes
        of one head."""
        source = share(count, self.senders, self.link.source).start
        target = share(count, self.receivers, self.link.target).start
        return Segment(
            (heads.start - source) * size, (heads.start - target) * size, len(heads) * size
        )


def _columns(layout: CacheLayout, layer: int) -> list[SlotColumn]:
    return [column for column in layout.columns if column.layer == layer]
