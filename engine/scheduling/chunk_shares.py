"""Who gets how much of a forward's prompt tokens. Pure.

Each caller has an equal part of the chunk. Of a part, the prompt with the least left to compute
comes first, at most three quarters of the chunk to one prompt: a long prompt delays a short one by
a few chunks, not by its length. Every fourth chunk begins with the oldest prompt instead, so that
short ones that keep coming never stop a long one. What somebody cannot use, others get.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from tasuki.pycache.layout import PAGE_TOKENS

_OLDEST_EVERY = 4


@dataclass(frozen=True)
class Demand:
    """Tokens [start, length) of a prompt are still to be forwarded. sought: somebody needs them
    until there; at most length."""

    caller: str
    start: int
    length: int
    sought: int

    @property
    def left(self) -> int:
        return self.sought - self.start


def share_chunk(demands: Sequence[Demand], budget: int, turn: int) -> list[int]:
    """Where each demand's next forward stops, its start where it gets nothing: on a page inside of
    a prompt. demands: the oldest first. budget: tokens in all. turn: number of the chunk."""
    stops = [demand.start for demand in demands]
    if not demands:
        return stops
    order = sorted(range(len(demands)), key=lambda index: demands[index].left)
    if turn % _OLDEST_EVERY == 0:
        order.remove(0)
        order.insert(0, 0)
    left = budget

    def take(index: int, most: int) -> int:
        """Tokens that it gets more, so that it has no more than `most` in all."""
        nonlocal left
        demand, before = demands[index], stops[index]
        stop = min(demand.length, before + left, demand.start + most)
        if stop < demand.length:
            stop = stop // PAGE_TOKENS * PAGE_TOKENS
        stops[index] = max(before, stop)
        left -= stops[index] - before
        return stops[index] - before

    callers = sorted({demand.caller for demand in demands})
    first = turn % len(callers)
    part = max(PAGE_TOKENS, budget // len(callers))
    most = max(PAGE_TOKENS, budget * 3 // 4)
    for caller in callers[first:] + callers[:first]:
        of_caller = part
        for index in order:
            if demands[index].caller == caller:
                of_caller -= take(index, min(most, of_caller))
    for limit in (most, budget):
        for index in order:
            take(index, limit)
    return stops
