"""Which rank of a sender gives which heads to which rank of a receiver.

Pure, of the two sizes and the model's heads alone, so that both nodes derive the same links. All
that is handed over is whole heads, but for what a draft layer carries, which every rank has.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from tasuki.pycache.layout import CacheLayout
from tasuki.pycache.rank_layout import key_heads
from tasuki.pycache.shares import share


@dataclass(frozen=True)
class RankLink:
    """From a sender's rank `source` to a receiver's rank `target`; heads are numbered as in the
    whole model. kv: of pages, where the source's turn is (sends_page). keys, values: of states.
    carry: of a draft layer. copies: how many sender ranks take turns with the target's pages, since
    they have the same head; the source is number `turn`."""

    source: int
    target: int
    kv: range
    keys: range
    values: range
    carry: bool
    copies: int
    turn: int

    def sends_page(self, page: int) -> bool:
        """page: the logical number of a page in its sequence."""
        return bool(self.kv) and page % self.copies == self.turn


def rank_links(layout: CacheLayout, senders: int, receivers: int) -> list[RankLink]:
    """Ascending; two ranks that share nothing have no link. layout: of one rank that has all.
    Raises ValueError where its heads cannot be shared out."""
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
                # Of those who have it, one that the receiver is linked with for other things too.
                layout.draft_layers > 0 and source == target * senders // receivers,
                copies,
                turn,
            )
            if link.kv or link.keys or link.values or link.carry:
                yield link


def _turn(having: int, source: int, wanting: int, target: int) -> tuple[int, int]:
    """(How many ranks take turns to send the target the head that the two have, which turn is the
    source's); 0, 0: others send it. having, wanting: ranks of either side that have copies of one
    head, and those are neighbours."""
    own, place = source % having, target % wanting
    if wanting % having == 0:
        return (1, 0) if own == place * having // wanting else (0, 0)
    if having % wanting:
        return having, own
    each = having // wanting
    return (each, own % each) if own // each == place else (0, 0)


def _both(heads: int, senders: int, source: int, receivers: int, target: int) -> range:
    """The heads that both have."""
    first, second = share(heads, senders, source), share(heads, receivers, target)
    start, stop = max(first.start, second.start), min(first.stop, second.stop)
    return range(start, max(start, stop))
