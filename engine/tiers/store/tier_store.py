"""What a tier below the arena is to who copies: pages and slots by the tree's ids.

Host memory is one that is read from, a file on a disk and objects of a remote store are ones that
are written too.
"""

from collections.abc import Sequence
from typing import Protocol

from tasuki.engine.tiers.pieces import page_bytes, slot_bytes
from tasuki.pycache.arena import Arena

from .rows import Row, Rows


class TierSource(Protocol):
    """Thread rule: as many threads as like, of ids that nobody writes. A call returns with all of
    its bytes there, or raises an OSError; what it brings is not believed: who reads compares
    digests. It takes as long as it takes: who waits for it has a bound (CopyThread)."""

    def get_pages(self, pages: Sequence[int], rows: Rows) -> None:
        """Into the first bytes of a row each."""

    def get_slot(self, slot: int, row: Row) -> None: ...


class TierStore(TierSource, Protocol):
    """One thread writes."""

    def put_pages(self, pages: Sequence[int], rows: Rows) -> None:
        """From the first bytes of a row each."""

    def put_slot(self, slot: int, row: Row) -> None: ...


class HostSource:
    """An arena in host memory."""

    def __init__(self, arena: Arena) -> None:
        self._arena = arena

    def get_pages(self, pages: Sequence[int], rows: Rows) -> None:
        size = self._arena.layout.page_bytes
        for page, row in zip(pages, rows, strict=True):
            blocks = page_bytes(self._arena, page)
            row[:size].reshape(blocks.shape)[:] = blocks

    def get_slot(self, slot: int, row: Row) -> None:
        row[: self._arena.layout.slot_bytes] = slot_bytes(self._arena, slot)
