"""Links between the ranks of two nodes: the heads sent over each, and the places of their bytes.

Pure: both nodes derive the same links from the two numbers of ranks and the layers' parts.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from tasuki.pycache.layout import CacheLayout
from tasuki.pycache.parts import LayerCache, share


@dataclass(frozen=True)
class Segment:
    """Neighbouring heads of one part, or a whole part, sent over a link.

    source, target: byte offset of the first head in the layer's block, or in its state, on the
    sender and the receiver. heads, size: number of heads, and bytes of one. number: number of the
    first head in the whole model, among all heads of the layer's blocks, or of its states, and the
    copies on the receiver's ranks. copies: number of sender ranks with the same heads; they take
    turns with the target's pages. turn: the source's number among these ranks.
    """

    source: int
    target: int
    heads: int
    size: int
    number: int
    copies: int
    turn: int

    @property
    def length(self) -> int:
        return self.heads * self.size

    @property
    def each(self) -> Iterator["Segment"]:
        """Yield each head as a segment of its own."""
        for head in range(self.heads):
            source, target = self.source + head * self.size, self.target + head * self.size
            number = self.number + head
            yield replace(self, source=source, target=target, heads=1, number=number)


@dataclass(frozen=True)
class RankLink:
    """Link from one rank of a sender to one rank of a receiver.

    Pure: both nodes derive the same links from the two numbers of ranks and the layers' parts. All
    handed-over bytes are whole heads, each one run of bytes in a block and in a part of a state. A
    whole part counts as one head, present on every rank.

    source, target: rank of the sender and of the receiver. senders, receivers: numbers of ranks.
    """

    source: int
    target: int
    senders: int
    receivers: int

    def of_block(self, cache: LayerCache) -> Iterator[Segment]:
        """Yield the segments of a page in one layer, for the pages of their turn. cache: of a
        single rank with all heads. Raises ValueError if heads cannot be divided among the ranks."""
        return self._segments(cache.block_runs)

    def of_state(self, cache: LayerCache) -> Iterator[Segment]:
        """Yield the segments of one layer's state in a slot; only the first of the ranks with the
        same heads sends them. Raises ValueError if heads cannot be divided among the ranks."""
        ours, theirs = (
            cache.of_rank(*rank).columns
            for rank in ((self.senders, self.source), (self.receivers, self.target))
        )
        number = 0
        for part, (source, _), (target, _) in zip(cache.slot, ours, theirs, strict=True):
            for found in self._segments(part.runs):
                if found.turn == 0:
                    yield replace(
                        found,
                        source=source + found.source,
                        target=target + found.target,
                        number=number + found.number,
                    )
            number += sum(heads * self._wanting(heads) for heads, _ in part.runs)

    def _wanting(self, heads: int) -> int:
        """Return the number of receiver ranks with a copy of one head."""
        return max(1, self.receivers // heads)

    def _segments(self, runs: Iterable[tuple[int, int]]) -> Iterator[Segment]:
        """Yield the segments of runs of equal heads, end to end. runs: (heads, bytes of a head) in
        the whole model."""
        source = target = number = 0
        for heads, size in runs:
            ours = share(heads, self.senders, self.source)
            theirs = share(heads, self.receivers, self.target)
            both = range(max(ours.start, theirs.start), min(ours.stop, theirs.stop))
            wanting = self._wanting(heads)
            copies, turn = _turn(max(1, self.senders // heads), self.source, wanting, self.target)
            if both and copies:
                at = source + size * (both.start - ours.start)
                to = target + size * (both.start - theirs.start)
                named = number + both.start + self.target % wanting * heads
                yield Segment(at, to, len(both), size, named, copies, turn)
            source, target = source + len(ours) * size, target + len(theirs) * size
            number += heads * wanting


def rank_links(layout: CacheLayout, senders: int, receivers: int) -> list[RankLink]:
    """Return the links in ascending order; two ranks without a shared head have none. layout:
    layout of a single rank with all heads. senders, receivers: numbers of ranks. Raises ValueError
    if heads cannot be divided among the ranks."""
    caches = dict.fromkeys(layout.layers)
    every = (
        RankLink(source, target, senders, receivers)
        for source in range(senders)
        for target in range(receivers)
    )
    return [
        link
        for link in every
        if any([*link.of_block(cache), *link.of_state(cache)] for cache in caches)
    ]


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
