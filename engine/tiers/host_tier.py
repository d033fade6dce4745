"""Copies between the arena and host memory, from the tree's decision to its acknowledgement.

Owns what is in flight; the tree decides what is copied (cpp_cache/tiers), a copier moves bytes.
Thread rule: the engine loop's.
Invariants:
1. A copy begins behind an event that is recorded when it was decided: all that was launched before,
   and all that the cache had to copy by then, has ended. So it reads no page that is still written,
   and writes none that a former owner still reads.
2. Each transfer is acknowledged once, when its copy has ended and touches nothing any more. A load
   that is given up, by an abort or since it is late, is quarantined until then.
3. No request and no allocation waits for a write. Nothing waits without a bound: a load that is
   late is given up, and whoever closes waits as long as they say.
"""

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from tasuki.engine.accounting.loaded_hits import HOST
from tasuki.engine.messages import TierReport
from tasuki.engine.runner.base import Event, EventRecorder
from tasuki.pycache._cpp_cache import Allocation
from tasuki.pycache.prefix_cache import HybridPrefixCache

from .copy_job import CopyJob, JobEnd
from .tier_prices import TierPrices

MOST_WRITES = 2
"""Begun at a time: what is behind them may still be given up for nothing."""
LATE_SECONDS = 2.0
"""At least, before a load is given up: a busy machine is no broken one."""
_LATE_TIMES = 8
"""So often what it was to take."""


class Copier(Protocol):
    """CopyThread, or what a test puts in its place."""

    def begin(self, job: CopyJob) -> None: ...

    def cancel(self, transfer: int) -> None: ...

    def take_ended(self) -> list[tuple[int, JobEnd]]: ...

    def wait(self, seconds: float) -> None: ...

    def close(self, seconds: float) -> bool: ...


class LoadEnd(Enum):
    LANDED = "landed"
    """The allocation is to be computed from cached_tokens on."""
    FAILED = "failed"
    """The allocation is void."""
    LATE = "late"
    """The allocation is gone."""


@dataclass(eq=False)
class _Load:
    allocation: Allocation
    on_end: Callable[[LoadEnd], None]
    price: float
    due: float
    quarantine: int | None = None
    """Of a load that was given up."""


@dataclass
class TierCounters:
    """Loads and writes by how they ended: late and aborted ones were given up first. Bytes: of
    those that were of use."""

    loads: dict[str, int]
    writes: dict[str, int]
    loaded_bytes: int = 0
    written_bytes: int = 0


class HostTier:
    def __init__(
        self,
        cache: HybridPrefixCache,
        recorder: EventRecorder,
        copier: Copier,
        prices: TierPrices,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._cache = cache
        self._recorder = recorder
        self._copier = copier
        self._prices = prices
        self._clock = clock
        self._loads: dict[int, _Load] = {}
        self._writes: dict[int, int] = {}
        """Bytes by transfer."""
        self._unbegun: deque[tuple[Event, CopyJob]] = deque()
        ends = (JobEnd.DONE, JobEnd.CANCELLED, JobEnd.MISMATCH, JobEnd.BROKEN)
        self.counters = TierCounters(
            dict.fromkeys([*(end.value for end in ends), "late", "aborted"], 0),
            {end.value: 0 for end in ends if end is not JobEnd.MISMATCH},
        )

    @property
    def load_wait(self) -> float:
        """Until a load that is asked for now would begin, in tokens of prefill."""
        return sum(load.price for load in self._loads.values())

    @property
    def loading(self) -> int:
        """Loads that somebody waits for."""
        return sum(load.quarantine is None for load in self._loads.values())

    @property
    def is_busy(self) -> bool:
        """Whether a copy is under way."""
        return bool(self._loads or self._writes)

    def load(self, allocation: Allocation, on_end: Callable[[LoadEnd], None]) -> None:
        """Begin the allocation's load. on_end: called once, by advance(), unless it is given up
        first. REQUIRES: the allocation has a load."""
        assert allocation.load is not None
        job = CopyJob.of_load(allocation.load)
        price = self._prices.load(len(job.pages))
        expected = (self.load_wait + price) * self._prices.seconds
        due = self._clock() + max(LATE_SECONDS, _LATE_TIMES * expected)
        self._loads[job.transfer] = _Load(allocation, on_end, price, due)
        self._begin(job)

    def give_up(self, allocation: Allocation) -> None:
        """Nobody wants the allocation any more; it is gone on return. REQUIRES: it is loading."""
        assert allocation.load is not None
        self._give_up(allocation.load.id)
        self.counters.loads["aborted"] += 1

    def _give_up(self, transfer: int) -> None:
        load = self._loads[transfer]
        load.quarantine = self._cache.quarantine(load.allocation)
        self._copier.cancel(transfer)

    def advance(self) -> None:
        """Begin what is at rest, acknowledge what has ended, give up what is late."""
        self._begin_at_rest()
        for transfer, end in self._copier.take_ended():
            if transfer in self._writes:
                self._end_write(transfer, end)
            else:
                self._end_load(transfer, end)
        if self._loads:
            self._end_late()

    def write_down(self) -> None:
        """Begin what is to be written next, as far as it may. Behind a launch nothing has to be
        launched for its sake."""
        while len(self._writes) < MOST_WRITES:
            write = self._cache.next_write()
            if write is None:
                return
            layout = self._cache.arena.layout
            size = write.page_count * layout.page_bytes + layout.slot_bytes
            self._writes[write.id] = size
            self._begin(CopyJob.of_write(write))

    def report(self) -> TierReport:
        stats, layout = self._cache.stats(), self._cache.arena.layout
        tier, counters = stats.tiers[0], self.counters
        return TierReport(
            HOST,
            layout.slab_bytes,
            {"free": tier.slabs_free, "total": tier.slabs_total},
            {"pages": tier.pages.tree, "slots": tier.slots.tree},
            dict(counters.loads),
            {**counters.writes, "abandoned": tier.abandoned_writes, "refused": tier.refused_writes},
            {"loaded": counters.loaded_bytes, "written": counters.written_bytes},
            {
                "loads": len(self._loads),
                "writes": len(self._writes),
                "waiting_writes": stats.waiting_writes,
            },
            {"pages": tier.dropped_pages, "slots": tier.dropped_slots},
        )

    def wait(self, seconds: float) -> None:
        """Until a copy has ended, at most so long; not while one is still to begin."""
        if not self._unbegun:
            self._copier.wait(seconds)

    def close(self, seconds: float) -> bool:
        """End every copy and the copier. False: that took longer; what is being copied is then its
        own for good."""
        return self._copier.close(seconds)

    def _begin(self, job: CopyJob) -> None:
        self._unbegun.append((self._recorder.record_event(), job))
        self._begin_at_rest()

    def _begin_at_rest(self) -> None:
        while self._unbegun and self._unbegun[0][0]():
            self._copier.begin(self._unbegun.popleft()[1])

    def _end_write(self, transfer: int, end: JobEnd) -> None:
        size = self._writes.pop(transfer)
        self._cache.acknowledge(transfer, end is JobEnd.DONE)
        self.counters.writes[end.value] += 1
        if end is JobEnd.DONE:
            self.counters.written_bytes += size

    def _end_load(self, transfer: int, end: JobEnd) -> None:
        load = self._loads.pop(transfer)
        layout, pages = self._cache.arena.layout, 0
        if load.quarantine is None:
            assert load.allocation.load is not None
            pages = len(load.allocation.load.pages)
        self._cache.acknowledge(transfer, end is JobEnd.DONE)
        if load.quarantine is not None:
            self._cache.free_quarantined(load.quarantine)
            return
        self.counters.loads[end.value] += 1
        if end is JobEnd.DONE:
            self.counters.loaded_bytes += pages * layout.page_bytes + layout.slot_bytes
        load.on_end(LoadEnd.LANDED if end is JobEnd.DONE else LoadEnd.FAILED)

    def _end_late(self) -> None:
        now = self._clock()
        late = [
            (transfer, load)
            for transfer, load in self._loads.items()
            if load.quarantine is None and now > load.due
        ]
        for transfer, load in late:
            self._give_up(transfer)
            self.counters.loads["late"] += 1
            load.on_end(LoadEnd.LATE)


MakeTier = Callable[[HybridPrefixCache, EventRecorder], HostTier]
"""Below that cache's arena, for the engine whose launches are recorded."""
