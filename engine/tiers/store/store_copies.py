"""`PieceCopies` of a store below host memory: down from the tier above it, up to the arena."""

from tasuki.engine.tiers.copy_job import CopyJob
from tasuki.engine.tiers.digests import ArenaDigests, TierDigests
from tasuki.engine.tiers.piece_copies import PIECE_BYTES
from tasuki.engine.tiers.pieces import page_bytes, slot_bytes
from tasuki.engine.tiers.running_copy import WholeCopy
from tasuki.pycache.arena import Arena
from tasuki.pycache.place_copies import PagePairs

from .rows import PassingRows
from .tier_store import TierSource, TierStore


class StoreCopies:
    """An arena in host memory, above them all."""

    def __init__(
        self, arena: Arena, above: TierSource, written: TierDigests, store: TierStore
    ) -> None:
        """above: the tier above the store's, and what it was written with."""
        self._arena = arena
        self._above = above
        self._written = written
        self._store = store
        self._at_once = max(1, PIECE_BYTES // arena.layout.page_bytes)
        self._passing = PassingRows()
        self._digests = ArenaDigests(arena)

    def down(self, job: CopyJob) -> WholeCopy:
        return WholeCopy(job, self._at_once, self._pages_down, self._slot_down)

    def up(self, job: CopyJob) -> WholeCopy:
        return WholeCopy(job, self._at_once, self._pages_up, self._slot_up)

    def _pages_down(self, pages: PagePairs) -> list[int]:
        sources, targets = zip(*pages, strict=True)
        # As the arena had them: what the tier above has by now is not asked.
        digests = [self._written.pages[page] for page in sources]
        rows = self._passing.rows(len(pages), self._arena.layout.page_bytes)
        self._above.get_pages(sources, rows)
        self._store.put_pages(targets, rows)
        return digests

    def _pages_up(self, pages: PagePairs) -> list[int]:
        sources, targets = zip(*pages, strict=True)
        size = self._arena.layout.page_bytes
        rows = self._passing.rows(len(pages), size)
        self._store.get_pages(sources, rows)
        for page, row in zip(targets, rows, strict=True):
            blocks = page_bytes(self._arena, page)
            blocks[:] = row[:size].reshape(blocks.shape)
        return self._digests.of_pages(targets)

    def _slot_down(self, slot: tuple[int, int]) -> int:
        digest = self._written.slots[slot[0]]
        row = self._passing.rows(1, self._arena.layout.slot_bytes)[0]
        self._above.get_slot(slot[0], row)
        self._store.put_slot(slot[1], row)
        return digest

    def _slot_up(self, slot: tuple[int, int]) -> int:
        size = self._arena.layout.slot_bytes
        row = self._passing.rows(1, size)[0]
        self._store.get_slot(slot[0], row)
        slot_bytes(self._arena, slot[1])[:] = row[:size]
        return self._digests.of_slot(slot[1])
