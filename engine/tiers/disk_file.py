"""A file of records on a disk: memory below host memory, by the same ids.

A page lies in one piece, and so does a slot: a slab of the file holds as many pages, or one slot,
as one of the arena. One slab more is for trying the disk. The file stays where its node ends.

Thread rule: one thread reads and writes.
Invariant: a call returns with all of its bytes moved, or raises DiskFailed. What a disk returns is
not believed here: who reads compares digests.
"""

import errno
import logging
import mmap
import os
import weakref
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from tasuki.pycache.layout import CacheLayout

from .kept.disk_failed import DiskFailed
from .kept.kept_folder import KeptFolder

log = logging.getLogger(__name__)

_SECTOR = 4096
"""Direct reads and writes begin and end at such bytes, in the file and in memory."""
_MOST_FAILURES = 3
"""One after the other, before the disk is given up."""
_NAME = "slabs"


class DiskFile:
    def __init__(self, folder: KeptFolder, layout: CacheLayout, slabs: int) -> None:
        """Takes the file's room on the disk; what is in it stays. Raises DiskFailed."""
        self.layout = layout
        self.slabs = slabs
        self._folder = folder.path
        self._page = _sectors(layout.page_bytes)
        self._slot = _sectors(layout.slot_bytes)
        self._slab = disk_slab_bytes(layout)
        self._failures = 0
        # A map of its own is aligned as direct reads and writes need it.
        self._memory = memoryview(mmap.mmap(-1, max(self._page, self._slot)))
        self._staging = np.frombuffer(self._memory, dtype=np.uint8)
        size = (slabs + 1) * self._slab
        try:
            self._file = _open(folder)
            self._let_go = weakref.finalize(self, os.close, self._file)
            _take_room(self._file, size)
        except OSError as error:
            raise DiskFailed(f"no file of {size} bytes in {folder.path}: {error}") from error

    @property
    def page(self) -> NDArray[np.uint8]:
        """What write_page() takes and read_page() fills: [page bytes]."""
        return self._staging[: self.layout.page_bytes]

    @property
    def slot(self) -> NDArray[np.uint8]:
        """What write_slot() takes and read_slot() fills: [slot bytes]."""
        return self._staging[: self.layout.slot_bytes]

    def write_page(self, page: int) -> None:
        self._move("written", os.pwritev, self._page, self._page_offset(page))

    def read_page(self, page: int) -> None:
        self._move("read", os.preadv, self._page, self._page_offset(page))

    def write_slot(self, slot: int) -> None:
        self._move("written", os.pwritev, self._slot, slot * self._slab)

    def read_slot(self, slot: int) -> None:
        self._move("read", os.preadv, self._slot, slot * self._slab)

    def close(self) -> None:
        """Idempotent. REQUIRES: nobody reads or writes any more."""
        self._let_go()

    def _page_offset(self, page: int) -> int:
        slab, index = divmod(page, self.layout.blocks_per_slab)
        return slab * self._slab + index * self._page

    def _move(
        self,
        what: str,
        call: Callable[[int, list[memoryview], int], int],
        length: int,
        offset: int,
    ) -> None:
        if self._failures >= _MOST_FAILURES:
            raise DiskFailed(f"the disk of {self._folder} was given up")
        place = f"{length} bytes at {offset} of the file in {self._folder}"
        try:
            moved = call(self._file, [self._memory[:length]], offset)
        except OSError as error:
            self._failed()
            raise DiskFailed(f"{place} could not be {what}: {error}") from error
        if moved != length:
            self._failed()
            raise DiskFailed(f"{moved} of {place} were {what}")
        self._failures = 0

    def _failed(self) -> None:
        self._failures += 1
        if self._failures == _MOST_FAILURES:
            log.error(
                "the disk of %s failed %d times in a row and is given up: what was there is "
                "computed; mend it and restart this node, or leave disk_cache out",
                *(self._folder, _MOST_FAILURES),
            )


def disk_slab_bytes(layout: CacheLayout) -> int:
    """Of a slab in a file."""
    return max(layout.pages_per_slab * _sectors(layout.page_bytes), _sectors(layout.slot_bytes))


def _sectors(size: int) -> int:
    return -(-size // _SECTOR) * _SECTOR


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
