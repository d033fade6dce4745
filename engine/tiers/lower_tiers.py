"""Copies between the arena and the tiers below it, from the prefix tree's decision to its
acknowledgement.

Owns the copies in flight. The prefix tree decides on copies (cpp_cache/tiers), and a copier for
each tier moves bytes. Thread rule: the engine loop's.

Invariants:
1. A copy begins after an event recorded at its decision. All earlier launches and cache copies have
   ended then. So the copy reads no page still being written, and overwrites none still read by a
   former owner.
2. Each transfer is acknowledged once, when its copies have ended and touch nothing any more. It
   succeeds only if each copy did. A load given up, by an abort or as late, is quarantined until
   then.
3. No request and no allocation waits for a write. Every wait is bounded: a late load is given up,
   and close() has the caller's time limit.
"""

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from tasuki.engine.messages import TierReport
from tasuki.engine.runner.base import Event, EventRecorder
from tasuki.engine.tiers.remote.remote_memory import NO_LOOKUP, Lookup, adopt
from tasuki.engine.tiers.remote.remote_objects import Manifest
from tasuki.pycache._cpp_cache import Allocation, TierStats, TierWrite
from tasuki.pycache.keys import Keys
from tasuki.pycache.prefix_cache import HybridPrefixCache
from tasuki.utils.signatures import Clock

from .copy_job import CopyJob, JobEnd, LoadBarrier, WriteLabel, parts_of_load
from .tier import LowerTier, TierCounters

MOST_WRITES = 2
"""Writes from the arena in progress at a time. Writes not begun yet can be given up at no cost. The
prefix tree limits writes from one tier to the next."""
LATE_SECONDS = 2.0
"""Least seconds before a load is given up, so slowness of a busy machine does not end it."""
_FILLING_SECONDS = 5.0
"""Seconds between checks of a used-up write budget."""
_LATE_TIMES = 8
"""A load is late after this multiple of its expected seconds."""


class Behind(Protocol):
    """A computation started before its load has ended, using the load's pages and slot."""

    @property
    def ended(self) -> bool:
        """Return True if the computation has ended. It touches no memory from then on."""

    def wait(self, seconds: float) -> None:
        """Wait until the computation has ended, for at most `seconds`."""

    @property
    def spoiled(self) -> bool:
        """Return True if the computation overwrote loaded data and has no usable result. REQUIRES:
        it has ended."""


class LoadEnd(Enum):
    LANDED = "landed"
    """The load is complete. Computation continues from the allocation's cached_tokens."""
    FAILED = "failed"
    """The load failed, and its allocation has no usable data."""
    LATE = "late"
    """The load was given up as late, and its allocation is quarantined."""


OnLoadEnd = Callable[[LoadEnd], None]
"""A function called once with the result of a load, on the engine's thread."""


@dataclass(eq=False)
class _Load:
    allocation: Allocation
    on_end: OnLoadEnd
    price: float
    due: float
    sizes: Mapping[int, int]
    """Bytes of the load from each tier, by tier number."""
    left: set[int]
    """Numbers of the tiers with copies in progress."""
    barrier: LoadBarrier | None = None
    behind: Behind | None = None
    end: JobEnd = JobEnd.DONE
    quarantine: int | None = None
    """The cache's quarantine number of a load given up; else None."""


class LowerTiers:
    def __init__(
        self,
        cache: HybridPrefixCache,
        recorder: EventRecorder,
        tiers: Sequence[LowerTier],
        clock: Clock = time.monotonic,
    ) -> None:
        """tiers: the cache's lower tiers, the nearest first."""
        self._cache = cache
        self._recorder = recorder
        self._tiers = tuple(tiers)
        self._clock = clock
        self._remote = next(
            ((at, tier.remote) for at, tier in enumerate(tiers) if tier.remote is not None), None
        )
        self._loads: dict[int, _Load] = {}
        self._writes: dict[int, tuple[int, int]] = {}
        """Target tier number and bytes of each write in progress, by transfer number."""
        self._unflushed: set[int] = set()
        """Transfer numbers of writes from one tier to the next, in progress at a flush."""
        self._unbegun: deque[tuple[Event, int, CopyJob]] = deque()

    @property
    def counters(self) -> tuple[TierCounters, ...]:
        """Return the counters of each tier."""
        return tuple(tier.counters for tier in self._tiers)

    @property
    def load_wait(self) -> float:
        """Return the waiting time of a new load behind those in progress, in tokens of prefill."""
        return sum(load.price for load in self._loads.values())

    @property
    def loading(self) -> int:
        """Return the number of loads in progress and not given up."""
        return sum(load.quarantine is None for load in self._loads.values())

    @property
    def is_busy(self) -> bool:
        """Return True if a copy is in progress, or a lookup with a waiting request."""
        return bool(self._loads or self._writes) or self._is_looking_up

    @property
    def idle_seconds(self) -> float | None:
        """Return the seconds until the tiers next have work if no request comes: a used-up write
        budget fills with time. None: no work without a request."""
        places = (tier.outlives for tier in self._tiers)
        if all(place is None or place.pages_a_second is None for place in places):
            return None
        budgets = (tier.budget_pages for tier in self._cache.stats().tiers)
        used_up = any(pages is not None and pages <= 0 for pages in budgets)
        return _FILLING_SECONDS if used_up else None

    @property
    def _is_looking_up(self) -> bool:
        return self._remote is not None and self._remote[1].lookups.is_busy

    @property
    def names(self) -> list[str]:
        """Return the names of the tiers, the nearest first."""
        return [tier.name for tier in self._tiers]

    def look_up(self, tokens: Keys, salt: bytes, cursor: int | None) -> Lookup:
        """Begin to look up a new prompt in the remote store, beyond the tokens stored on this node.
        advance() adds found states to the prefix tree. Return the lookup; it is already over
        without a remote store, or if not worth its cost."""
        if self._remote is None:
            return NO_LOOKUP
        match = self._cache.match(tokens, salt, cursor)
        stands = max([match.usable_tokens, *(state.boundary for state in match.stored)])
        return self._remote[1].lookups.begin(salt, tokens, stands)

    def _adopt(self, manifest: Manifest) -> None:
        assert self._remote is not None
        number, remote = self._remote
        adopt(self._cache, number, remote.objects, manifest, self._tiers[number].copier.written)

    def load(
        self,
        allocation: Allocation,
        on_end: OnLoadEnd,
        barrier: LoadBarrier | None = None,
        behind: Behind | None = None,
    ) -> None:
        """Begin the allocation's load from lower tiers. on_end: called once, by advance(), unless
        the load is given up first. barrier: opened as layers arrive, if a single tier has all of
        the load; closed if the load fails. behind: a computation waiting at the barrier; the load
        ends only after it. REQUIRES: the allocation has a load."""
        assert allocation.load is not None
        parts = parts_of_load(allocation.load, barrier)
        price = sum(self._tiers[tier].prices.load(len(job.pages)) for tier, job in parts.items())
        expected = (self.load_wait + price) * self._tiers[0].prices.seconds
        due = self._clock() + max(LATE_SECONDS, _LATE_TIMES * expected)
        sizes = {tier: self._size(job) for tier, job in parts.items()}
        load = _Load(allocation, on_end, price, due, sizes, set(parts), barrier, behind)
        self._loads[allocation.load.id] = load
        for tier, job in parts.items():
            self._begin(tier, job)

    def _size(self, job: CopyJob) -> int:
        layout = self._cache.arena.layout
        slot = layout.slot_bytes if job.slot is not None else 0
        return len(job.pages) * layout.page_bytes + slot

    def give_up(self, allocation: Allocation) -> None:
        """Give up the load of an allocation no longer needed, and quarantine the allocation.
        REQUIRES: it is loading."""
        assert allocation.load is not None
        self._give_up(allocation.load.id, "aborted")

    def _give_up(self, transfer: int, why: str) -> None:
        load = self._loads[transfer]
        load.quarantine = self._cache.quarantine(load.allocation)
        self._cancel(transfer, load)
        self._tiers[max(load.sizes)].counters.loads[why] += 1

    def _cancel(self, transfer: int, load: _Load) -> None:
        if load.barrier is not None:
            load.barrier.close()
        for tier in load.left:
            self._tiers[tier].copier.cancel(transfer)

    def advance(self) -> None:
        """Begin copies once their recorded event has passed, acknowledge ended copies and lookups,
        give up late loads."""
        self._begin_at_rest()
        if self._remote is not None:
            for manifest in self._remote[1].lookups.advance():
                self._adopt(manifest)
        for tier, its in enumerate(self._tiers):
            for transfer, end in its.copier.take_ended():
                if transfer in self._writes:
                    self._end_write(transfer, end)
                else:
                    self._end_part(tier, transfer, end)
        for transfer, load in list(self._loads.items()):
            if not load.left and (load.behind is None or load.behind.ended):
                self._end_load(transfer, load)
        if self._loads:
            self._end_late()

    def write_down(self) -> None:
        """Begin writes to lower tiers, until MOST_WRITES to the nearest tier are in flight or none
        remains. Called after the launch of a forward, so the writes need no launch of their own."""
        while sum(tier == 0 for tier, _ in self._writes.values()) < MOST_WRITES:
            write = self._cache.next_write()
            if write is None:
                return
            job = CopyJob.of_write(write, self._label(write))
            self._writes[write.id] = write.target, self._size(job)
            self._begin(write.target, job)

    def _label(self, write: TierWrite) -> WriteLabel | None:
        """Return the write's label; None if no later run finds it there. A disk is of one node, and
        keeps the tree's salts. A store's folder is of one set of weights, with clients' salts."""
        if self._tiers[write.target].outlives is None:
            return None
        salt, start, above, tokens, kind = self._cache.label_of(write.id)
        if self._remote is not None and write.target == self._remote[0]:
            client_salt = self._cache.weights.client_salt(salt)
            if client_salt is None:
                return None
            salt = client_salt
        return WriteLabel(salt, start, above, tokens, kind.value)

    def empty(self) -> None:
        """Empty the tiers after a flush of the cache: neither a restart nor a lookup finds older
        data. Data still read by writes between tiers is dropped after these writes have ended."""
        if self._remote is not None:
            self._remote[1].objects.flushed()
        for each in self._tiers:
            each.copier.empty()
        for transfer, (tier, _) in self._writes.items():
            if tier > 0:
                self._unflushed.add(transfer)
                self._tiers[tier].copier.cancel(transfer)

    def change_weights(self, files_digest: str) -> None:
        """Use other weights' folder of the remote store from now on. files_digest: of these
        weights. REQUIRES: no copy is in progress. Raises RemoteFailed."""
        if self._remote is not None:
            self._remote[1].change_weights(files_digest)

    def report(self) -> tuple[TierReport, ...]:
        """Return a report of each tier."""
        stats, layout = self._cache.stats(), self._cache.arena.layout
        found = []
        for number, (tier, held) in enumerate(zip(self._tiers, stats.tiers, strict=True)):
            counters = tier.counters
            writes = {"abandoned": held.abandoned_writes, "refused": held.refused_writes}
            found.append(
                TierReport(
                    tier.name,
                    layout.slab_bytes,
                    {"free": held.slabs_free, "total": held.slabs_total},
                    {"pages": held.pages.tree, "slots": held.slots.tree},
                    dict(counters.loads),
                    {**counters.writes, **writes},
                    {"loaded": counters.loaded_bytes, "written": counters.written_bytes},
                    {
                        "loads": sum(number in load.left for load in self._loads.values()),
                        "writes": sum(to == number for to, _ in self._writes.values()),
                        "waiting_writes": stats.waiting_writes if number == 0 else 0,
                    },
                    {"pages": held.dropped_pages, "slots": held.dropped_slots},
                    {} if tier.outlives is None else tier.outlives.counters,
                    self._budget(tier, held),
                )
            )
        return tuple(found)

    def _budget(self, tier: LowerTier, held: TierStats) -> dict[str, int]:
        if held.budget_pages is None or tier.outlives is None:
            return {}
        page, filled = self._cache.arena.layout.page_bytes, tier.outlives.pages_a_second
        return {"left": int(held.budget_pages * page), "a_second": int((filled or 0) * page)}

    def wait(self, seconds: float) -> None:
        """Wait until a copy, a computation behind a load or a lookup has ended, for at most
        `seconds`. Returns immediately while a copy is still to begin. Without this wait, further
        steps would keep the interpreter lock from their threads."""
        if self._unbegun:
            return
        under_way = [tier for load in self._loads.values() for tier in load.left]
        under_way += [tier for tier, _ in self._writes.values()]
        if under_way:
            self._tiers[under_way[0]].copier.wait(seconds)
        elif self._loads:
            behind = next(iter(self._loads.values())).behind
            assert behind is not None
            behind.wait(seconds)
        elif self._remote is not None and self._is_looking_up:
            self._remote[1].lookups.wait(seconds)

    def close(self, seconds: float) -> bool:
        """End every copy and copier, each within `seconds`. Return False if one took longer. Its
        memory is then never reused, and the files it reads stay open."""
        ended = True
        # Begin with the last one: each reads the tier above it.
        for tier in reversed(self._tiers):
            ended = tier.copier.close(seconds) and ended
            if ended and tier.outlives is not None:
                tier.outlives.close()
        return ended

    def _begin(self, tier: int, job: CopyJob) -> None:
        self._unbegun.append((self._recorder.record_event(), tier, job))
        self._begin_at_rest()

    def _begin_at_rest(self) -> None:
        while self._unbegun and self._unbegun[0][0]():
            _, tier, job = self._unbegun.popleft()
            self._tiers[tier].copier.begin(job)

    def _end_write(self, transfer: int, end: JobEnd) -> None:
        tier, size = self._writes.pop(transfer)
        counters = self._tiers[tier].counters
        self._cache.acknowledge(transfer, end is JobEnd.DONE)
        counters.writes[end.value] += 1
        if end is JobEnd.DONE:
            counters.written_bytes += size
        if transfer in self._unflushed:
            self._unflushed.discard(transfer)
            self._cache.flush()

    def _end_part(self, tier: int, transfer: int, end: JobEnd) -> None:
        load = self._loads[transfer]
        load.left.discard(tier)
        if load.end is JobEnd.DONE and end is not JobEnd.DONE:
            load.end = end
            if load.quarantine is None:
                self._tiers[tier].counters.loads[end.value] += 1
                self._cancel(transfer, load)

    def _end_load(self, transfer: int, load: _Load) -> None:
        del self._loads[transfer]
        arrived = load.end is JobEnd.DONE and not (load.behind and load.behind.spoiled)
        self._cache.acknowledge(transfer, arrived)
        if load.quarantine is not None:
            self._cache.free_quarantined(load.quarantine)
            return
        if arrived:
            self._tiers[max(load.sizes)].counters.loads[load.end.value] += 1
            for tier, size in load.sizes.items():
                self._tiers[tier].counters.loaded_bytes += size
        load.on_end(LoadEnd.LANDED if arrived else LoadEnd.FAILED)

    def _end_late(self) -> None:
        now = self._clock()
        late = [
            (transfer, load)
            for transfer, load in self._loads.items()
            if load.quarantine is None and load.left and now > load.due
        ]
        for transfer, load in late:
            self._give_up(transfer, "late")
            load.on_end(LoadEnd.LATE)


MakeTiers = Callable[[HybridPrefixCache, EventRecorder], LowerTiers]
"""A function to make the tiers below a cache's arena. The recorder's engine owns them."""
