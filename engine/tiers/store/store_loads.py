"""Loads from a store to the arena: all of a store's copies that depends on where the arena is."""

from typing import Protocol

from tasuki.engine.tiers.copy_job import CopyJob
from tasuki.engine.tiers.digests import ArenaDigests
from tasuki.engine.tiers.piece_copies import PIECE_BYTES
from tasuki.engine.tiers.pieces import page_bytes, slot_bytes
from tasuki.engine.tiers.running_copy import RunningCopy, WholeCopy
from tasuki.pycache.arena import Arena
from tasuki.pycache.place_copies import PagePairs

from .rows import PassingRows
from .tier_store import TierSource


class StoreLoads(Protocol):
    """Thread rule: one thread, one load at a time."""

    def up(self, job: CopyJob) -> RunningCopy:
        """A load, of which nothing has begun; its digests are of what the arena has."""


class HostLoads:
    """To an arena in host memory."""

    def __init__(self, arena: Arena, store: TierSource) -> None:
        self._arena = arena
        self._store = store
        self._at_once = max(1, PIECE_BYTES // arena.layout.page_bytes)
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
