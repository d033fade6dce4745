"""`PieceCopies` of a store below host memory: down from the tier above it, up to the arena."""

from tasuki.engine.tiers.copy_job import CopyJob
from tasuki.engine.tiers.digests import TierDigests
from tasuki.engine.tiers.piece_copies import PIECE_BYTES
from tasuki.engine.tiers.running_copy import RunningCopy, WholeCopy
from tasuki.pycache.layout import CacheLayout
from tasuki.pycache.place_copies import PagePairs

from .rows import PassingRows
from .store_loads import StoreLoads
from .tier_store import TierSource, TierStore


class StoreCopies:
    def __init__(
        self,
        layout: CacheLayout,
        above: TierSource,
        written: TierDigests,
        store: TierStore,
        loads: StoreLoads,
    ) -> None:
        """above: the tier above the store's, and what it was written with. loads: from the
        store."""
        self._layout = layout
        self._above = above
        self._written = written
        self._store = store
        self._loads = loads
        self._at_once = max(1, PIECE_BYTES // layout.page_bytes)
        self._passing = PassingRows()

    def down(self, job: CopyJob) -> WholeCopy:
        return WholeCopy(job, self._at_once, self._pages_down, self._slot_down)

    def up(self, job: CopyJob) -> RunningCopy:
        return self._loads.up(job)

    def _pages_down(self, pages: PagePairs) -> list[int]:
        sources, targets = zip(*pages, strict=True)
        # As the arena had them: what the tier above has by now is not asked.
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
