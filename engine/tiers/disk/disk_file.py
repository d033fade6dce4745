"""A file of records on a disk: memory below host memory, by the same ids.

A page lies in one piece, and so does a slot: a slab of the file holds as many pages, or one slot,
as one of the arena. One slab more is for trying the disk. The file stays where its node ends.
Several pieces are in flight: a drive that has one to do at a time is mostly idle.

Thread rule: as `TierStore`.
Invariant: a call returns with all of its bytes moved, or raises DiskFailed. What a disk returns is
not believed here: who reads compares digests.
"""

import errno
import logging
import os
import weakref
from collections.abc import Callable, Sequence
from functools import partial

from tasuki.engine.tiers.kept.disk_failed import DiskFailed
from tasuki.engine.tiers.kept.kept_folder import KeptFolder
from tasuki.engine.tiers.store.io_threads import IoThreads
from tasuki.engine.tiers.store.patience import MOST_FAILURES, Patience
from tasuki.engine.tiers.store.rows import Row, Rows, row_bytes
from tasuki.pycache.layout import CacheLayout

log = logging.getLogger(__name__)

_IN_FLIGHT = 8
"""Reads or writes at a time, of _PIECE_BYTES at most."""
_PIECE_BYTES = 1 << 20
_NAME = "slabs"


class DiskFile:
    """As `TierStore`."""

    def __init__(self, folder: KeptFolder, layout: CacheLayout, slabs: int) -> None:
        """Takes the file's room on the disk; what is in it stays. Raises DiskFailed."""
        self.layout = layout
        self.slabs = slabs
        self._folder = folder.path
        self._page = row_bytes(layout.page_bytes)
        self._slab = disk_slab_bytes(layout)
        self._patience = Patience()
        self._threads = IoThreads("tasuki-disk-io", _IN_FLIGHT)
        size = (slabs + 1) * self._slab
        try:
            self._file = _open(folder)
            self._let_go = weakref.finalize(self, os.close, self._file)
            _take_room(self._file, size)
        except OSError as error:
            raise DiskFailed(f"no file of {size} bytes in {folder.path}: {error}") from error

    def put_pages(self, pages: Sequence[int], rows: Rows) -> None:
        self._move_all("written", os.pwritev, list(map(self._page_offset, pages)), rows)

    def get_pages(self, pages: Sequence[int], rows: Rows) -> None:
        self._move_all("read", os.preadv, list(map(self._page_offset, pages)), rows)

    def put_slot(self, slot: int, row: Row) -> None:
        self._move_all("written", os.pwritev, [slot * self._slab], row[None])

    def get_slot(self, slot: int, row: Row) -> None:
        self._move_all("read", os.preadv, [slot * self._slab], row[None])

    def close(self) -> None:
        """Idempotent. REQUIRES: nobody reads or writes any more."""
        self._threads.close()
        self._let_go()

    def _page_offset(self, page: int) -> int:
        slab, index = divmod(page, self.layout.blocks_per_slab)
        return slab * self._slab + index * self._page

    def _move_all(
        self,
        what: str,
        call: Callable[[int, list[memoryview], int], int],
        offsets: Sequence[int],
        rows: Rows,
    ) -> None:
        if self._patience.is_over:
            raise DiskFailed(f"the disk of {self._folder} was given up")
        moves = [
            partial(self._move, what, call, memoryview(row[at : at + _PIECE_BYTES]), offset + at)
            for offset, row in zip(offsets, rows, strict=True)
            for at in range(0, len(row), _PIECE_BYTES)
        ]
        try:
            self._threads.run(moves)
        except DiskFailed:
            self._failed()
            raise
        self._patience.worked()

    def _move(
        self,
        what: str,
        call: Callable[[int, list[memoryview], int], int],
        memory: memoryview,
        offset: int,
    ) -> None:
        place = f"{len(memory)} bytes at {offset} of the file in {self._folder}"
        try:
            moved = call(self._file, [memory], offset)
        except OSError as error:
            raise DiskFailed(f"{place} could not be {what}: {error}") from error
        if moved != len(memory):
            raise DiskFailed(f"{moved} of {place} were {what}")

    def _failed(self) -> None:
        if self._patience.failed():
            log.error(
                "the disk of %s failed %d times in a row and is given up: what was there is "
                "computed; mend it and restart this node, or leave disk_cache out",
                *(self._folder, MOST_FAILURES),
            )


def disk_slab_bytes(layout: CacheLayout) -> int:
    """Of a slab in a file."""
    return max(layout.pages_per_slab * row_bytes(layout.page_bytes), row_bytes(layout.slot_bytes))


def _take_room(file: int, size: int) -> None:
    before = os.fstat(file).st_size
    try:
        os.posix_fallocate(file, 0, size)
    except OSError:
        os.ftruncate(file, before)
        raise
    os.ftruncate(file, size)


def _open(folder: KeptFolder) -> int:
    """A descriptor. Past the page cache, where the file system can: memory for what it holds is
    what host memory is for."""
    try:
        return folder.open(_NAME, os.O_RDWR | os.O_CREAT | os.O_DIRECT)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
    log.warning("the file in %s is read and written by way of the page cache", folder.path)
    return folder.open(_NAME, os.O_RDWR | os.O_CREAT)
