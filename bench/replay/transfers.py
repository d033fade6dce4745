"""Plays the copies between the tiers of a replay: who waits, how long, and when each is
acknowledged.

Owns the links' time; moves no byte. One copy at a time is on a link. A write is acknowledged when
its bytes have passed and the trace's clock is there; a load at once, because a replay serves a
request whole at its arrival, but the link is taken for as long.
"""

import numpy as np
from numpy.typing import NDArray

from tasuki.model.costs import PrefillFlops
from tasuki.pycache._cpp_cache import Allocation, PrefixCache, TierLoad
from tasuki.pycache.layout import CacheLayout

from .tiers import FLOPS_A_SECOND, Link


class Transfers:
    """Borrows the tree. Thread rule: one thread."""

    def __init__(
        self, tree: PrefixCache, layout: CacheLayout, flops: PrefillFlops, links: tuple[Link, ...]
    ) -> None:
        self._tree = tree
        self._layout = layout
        self._tokens_a_second = FLOPS_A_SECOND / flops.linear
        self._links = links
        self._free_at = [0.0] * len(links)  # seconds of the trace
        self._writing: tuple[float, int] | None = None
        self._now = 0.0

    def advance_to(self, now_ms: int) -> None:
        """Ends the writes that are done by then, and begins those that follow each."""
        self._now = max(self._now, now_ms / 1000)
        while self._writing is not None and self._writing[0] <= self._now:
            ended, transfer = self._writing
            self._writing = None
            self._tree.acknowledge(transfer, True)
            self.write(ended)

    def write(self, begins: float | None = None) -> None:
        """Begins the next write, if none is under way."""
        if self._writing is not None:
            return
        write = self._tree.next_write()
        if write is not None:
            size = write.page_count * self._layout.page_bytes + self._layout.slot_bytes
            ends = self._take(write.target, size, self._now if begins is None else begins)
            self._writing = (ends, write.id)

    def allocate(
        self, prompt: NDArray[np.int32], capacity_tokens: int, now_ms: int
    ) -> Allocation | None:
        """With what it loads in place. Raises ImpossibleRequest."""
        self.advance_to(now_ms)
        wait = max(0.0, max(self._free_at) - self._now) * self._tokens_a_second
        allocation = self._tree.allocate_or_load(
            prompt, capacity_tokens=capacity_tokens, working_slots=1, load_wait=wait
        )
        if allocation is not None and allocation.load is not None:
            self._land(allocation.load)
        return allocation

    def _land(self, load: TierLoad) -> None:
        by_tier = [0] * len(self._links)
        for tier, _, _ in load.pages:
            by_tier[tier] += self._layout.page_bytes
        by_tier[load.state[0]] += self._layout.slot_bytes
        for tier, size in enumerate(by_tier):
            if size:
                self._take(tier, size, self._now)
        self._tree.acknowledge(load.id, True)

    def _take(self, tier: int, size: int, earliest: float) -> float:
        link = self._links[tier]
        begins = max(self._free_at[tier], earliest)
        self._free_at[tier] = begins + link.fixed_seconds + size / link.bytes_a_second
        return self._free_at[tier]
