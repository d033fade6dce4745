"""The copier of each tier below an arena."""

from typing import Protocol

from tasuki.engine.tiers.disk.disk_memory import DiskMemory
from tasuki.engine.tiers.remote.remote_memory import RemoteMemory
from tasuki.pycache.arena import Arena, PagePairs
from tasuki.pycache.layout import CacheLayout

from .copy_job import CopyJob
from .copy_thread import CopyThread
from .digests import ArenaDigests, DigestKind, TierDigests, page_bytes, slot_bytes
from .segment_copies import SEGMENT_BYTES, HostCopies, RunningCopy, SegmentCopies, WholeCopy
from .store import HostSource, PassingRows, TierSource, TierStore


class StoreLoads(Protocol):
    """Loads to an arena from one store below host memory. Thread rule: one load at a time."""

    def up(self, job: CopyJob) -> RunningCopy:
        """Return the copy of a load from the store, not begun yet. Its digests come from the
        arena's bytes."""


class HostLoads:
    """Loads from a store below host memory to an arena in host memory.

    Contains the code of a store's copies depending on the arena's memory.
    """

    def __init__(self, arena: Arena, store: TierSource) -> None:
        self._arena = arena
        self._store = store
        self._at_once = max(1, SEGMENT_BYTES // arena.layout.page_bytes)
        self._passing = PassingRows()
        self._digests = ArenaDigests(arena)

    def up(self, job: CopyJob) -> WholeCopy:
        return WholeCopy(job, self._at_once, self._pages_up, self._slot_up)

    def _pages_up(self, pages: PagePairs) -> list[int]:
        sources, targets = zip(*pages, strict=True)
        size = self._arena.layout.page_bytes
        rows = self._passing.rows(len(pages), size)
        self._store.get_pages(sources, rows)
        for page, row in zip(targets, rows, strict=True):
            blocks = page_bytes(self._arena, page)
            blocks[:] = row[:size].reshape(blocks.shape)
        return self._digests.of_pages(targets)

    def _slot_up(self, slot: tuple[int, int]) -> int:
        size = self._arena.layout.slot_bytes
        row = self._passing.rows(1, size)[0]
        self._store.get_slot(slot[0], row)
        slot_bytes(self._arena, slot[1])[:] = row[:size]
        return self._digests.of_slot(slot[1])


class StoreCopies:
    """The `SegmentCopies` of a store below host memory: writes come from the tier above it, loads
    go to the arena."""

    def __init__(
        self,
        layout: CacheLayout,
        above: TierSource,
        written: TierDigests,
        store: TierStore,
        loads: StoreLoads,
    ) -> None:
        """above: the tier above the store. written: digests of the contents of the tier above.
        loads: loads from the store to the arena."""
        self._layout = layout
        self._above = above
        self._written = written
        self._store = store
        self._loads = loads
        self._at_once = max(1, SEGMENT_BYTES // layout.page_bytes)
        self._passing = PassingRows()

    def down(self, job: CopyJob) -> WholeCopy:
        return WholeCopy(job, self._at_once, self._pages_down, self._slot_down)

    def up(self, job: CopyJob) -> RunningCopy:
        return self._loads.up(job)

    def _pages_down(self, pages: PagePairs) -> list[int]:
        sources, targets = zip(*pages, strict=True)
        # Use the digests from the arena. The present bytes of the tier above are not digested
        # again.
        digests = [self._written.pages[page] for page in sources]
        rows = self._passing.rows(len(pages), self._layout.page_bytes)
        self._above.get_pages(sources, rows)
        self._store.put_pages(targets, rows)
        return digests

    def _slot_down(self, slot: tuple[int, int]) -> int:
        digest = self._written.slots[slot[0]]
        row = self._passing.rows(1, self._layout.slot_bytes)[0]
        self._above.get_slot(slot[0], row)
        self._store.put_slot(slot[1], row)
        return digest


def tier_copiers(
    arena: Arena, host: Arena, disk: DiskMemory | None, remote: RemoteMemory | None = None
) -> list[CopyThread]:
    """Make the copiers of all tiers below an arena, the nearest tier first.

    Each tier has its own thread: a slow disk delays no copy of host memory.
    """
    found = [CopyThread(host_copies(arena, host))]
    source: TierSource = HostSource(host)
    if disk is not None:
        found.append(disk_copier(arena, host, found[0], disk))
        source = disk.file
    if remote is not None:
        found.append(remote_copier(arena, source, found[-1].written, remote))
    return found


def host_copies(arena: Arena, host: Arena) -> SegmentCopies:
    """Return the copies between the arena and the host tier. REQUIRES: for an arena on a GPU,
    `host` was made by arena_below()."""
    match DigestKind.of(arena.bytes.device):
        case DigestKind.XXH3:
            return HostCopies(arena, host)
        case DigestKind.WORDS:
            from tasuki.engine.tiers.gpu.gpu_copies import GpuCopies

            return GpuCopies(arena, host)


def store_copies(
    arena: Arena, above: TierSource, written: TierDigests, store: TierStore
) -> SegmentCopies:
    """Return the copies of a store below host memory. above, written: as in StoreCopies. Raises
    EngineConfigError if there is no pinned memory for loads."""
    return StoreCopies(arena.layout, above, written, store, _store_loads(arena, store))


def _store_loads(arena: Arena, store: TierSource) -> StoreLoads:
    match DigestKind.of(arena.bytes.device):
        case DigestKind.XXH3:
            return HostLoads(arena, store)
        case DigestKind.WORDS:
            from tasuki.engine.tiers.gpu.gpu_copies import GpuLoads

            return GpuLoads(arena, store)


def disk_copier(arena: Arena, host: Arena, above: CopyThread, disk: DiskMemory) -> CopyThread:
    """Make the disk's copier, with the digests of data kept from earlier runs. above: the host
    tier's copier."""
    segments = store_copies(arena, HostSource(host), above.written, disk.file)
    copier = CopyThread(segments, "disk", journal=disk.index)
    if disk.index.standing is not None:
        pages, slots = disk.index.standing.digests()
        copier.written.pages.update(pages)
        copier.written.slots.update(slots)
    return copier


def remote_copier(
    arena: Arena, above: TierSource, written: TierDigests, remote: RemoteMemory
) -> CopyThread:
    """Make the remote tier's copier. above: the next nearer tier. written: digests of this nearer
    tier's contents."""
    segments = store_copies(arena, above, written, remote.objects)
    return CopyThread(segments, "remote", journal=remote.objects)
