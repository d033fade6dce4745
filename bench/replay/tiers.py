"""The memory tiers of a replay below the arena, the cost of a load, and simulated copies.

Copies between tiers take time and are acknowledged to the tree.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tasuki.bench.errors import ReplayError
from tasuki.model.costs import PrefillFlops
from tasuki.pycache._cpp_cache import Allocation, PrefixCache, TierConfig, TierLoad
from tasuki.pycache.keys import Keys
from tasuki.pycache.layout import CacheLayout

GIB = 1 << 30
# Dense prefill of a whole node. The decision to load depends little on it, because a load is far
# cheaper than the prefill of more than a few hundred tokens.
FLOPS_A_SECOND = 300e12


@dataclass(frozen=True)
class Link:
    """The connection between a tier and the arena, in either direction. tier: "host" or "disk".
    fixed_seconds: seconds of any copy. bytes_a_second: its rate."""

    tier: str
    fixed_seconds: float
    bytes_a_second: float


# PCIe 5 with 16 lanes; a pair of NVMe drives.
LINKS = (Link("host", 0.5e-3, 55e9), Link("disk", 5e-3, 12e9))


@dataclass(frozen=True)
class Tiers:
    """Sizes of the memory tiers, GiB. arena: the arena. below: the lower tiers, nearest first.
    disk_write_budget: limit on writes to the disk; None: no limit."""

    arena: float
    below: tuple[float, ...]
    disk_write_budget: float | None = None

    @staticmethod
    def parsed(text: str, disk_write_budget: float | None = None) -> "Tiers":
        """Parse sizes in GiB: `64,1024` (arena, host) or `64,1024,8192` (arena, host, disk). Raises
        ReplayError naming the fault."""
        try:
            sizes = [float(part) for part in text.split(",")]
        except ValueError as error:
            raise ReplayError(f"--tiers {text}: {error}; give sizes in GiB as 64,1024") from error
        if not 2 <= len(sizes) <= 1 + len(LINKS) or not all(0 < size < 1 << 20 for size in sizes):
            raise ReplayError(
                f"--tiers {text}: give two or three sizes above 0 in GiB: arena, host and disk"
            )
        if disk_write_budget is not None:
            flag = f"--disk-write-budget {disk_write_budget}"
            if not 0 < disk_write_budget < 1 << 40:
                raise ReplayError(f"{flag}: give MB/s above 0, or leave it out")
            if len(sizes) <= len(LINKS):
                raise ReplayError(f"{flag} is of a disk: give --tiers {text} a third size")
        return Tiers(sizes[0], tuple(sizes[1:]), disk_write_budget)

    @property
    def links(self) -> tuple[Link, ...]:
        return LINKS[: len(self.below)]

    def configs(self, layout: CacheLayout, flops: PrefillFlops) -> Sequence[TierConfig]:
        """Return the configs of the tiers below the arena. Load prices are in tokens of prefill."""
        token_seconds = flops.linear / FLOPS_A_SECOND
        found = []
        for size, link in zip(self.below, self.links, strict=True):
            budget = self.disk_write_budget if link.tier == "disk" else None
            found.append(
                TierConfig(
                    slabs=max(1, int(size * GIB) // layout.slab_bytes),
                    fixed_cost=link.fixed_seconds / token_seconds,
                    page_cost=layout.page_bytes / link.bytes_a_second / token_seconds,
                    slot_cost=layout.slot_bytes / link.bytes_a_second / token_seconds,
                    pages_a_second=None if budget is None else budget * 1e6 / layout.page_bytes,
                )
            )
        return found


class Transfers:
    """Simulates the copies between tiers. Owns the links' time; moves no bytes. One copy at a time
    uses a link. A write is acknowledged once the trace's clock has reached its end. A load is
    acknowledged when it begins, because a replay serves a request whole at its arrival. The link is
    still busy for the load's duration. Borrows the tree. Thread rule: one thread."""

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
        """Advance the clock. Acknowledge the writes completed by then, and start the next write
        after each."""
        self._now = max(self._now, now_ms / 1000)
        while self._writing is not None and self._writing[0] <= self._now:
            ended, transfer = self._writing
            self._writing = None
            self._tree.acknowledge(transfer, True)
            self.write(ended)

    def write(self, begins: float | None = None) -> None:
        """Start the next write to a lower tier, if none is in progress. begins: its start in
        seconds of the trace; default: now."""
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
        """Allocate a prompt in the tree, with its loads from lower tiers acknowledged. Raises
        ImpossibleRequest."""
        self.advance_to(now_ms)
        wait = max(0.0, max(self._free_at) - self._now) * self._tokens_a_second
        allocation = self._tree.allocate_or_load(
            Keys(prompt), capacity_tokens=capacity_tokens, working_slots=1, load_wait=wait
        )
        if allocation is not None and allocation.load is not None:
            self._arrive(allocation.load)
        return allocation

    def _arrive(self, load: TierLoad) -> None:
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
