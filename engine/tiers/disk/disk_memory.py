"""The disk tier: its file of pages and slots, the file's size, and the probe of the disk at the
start."""

import errno
import logging
import os
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np

from tasuki.engine.config import AUTO_DTYPE, DTYPES, EngineConfig, EngineConfigError
from tasuki.engine.tiers.store import (
    MOST_FAILURES,
    IoThreads,
    MakeContract,
    PassingRows,
    Patience,
    Row,
    Rows,
    contract_digest,
    folder_of,
    row_bytes,
    within,
)
from tasuki.pycache.layout import CacheLayout

from .kept_folder import DiskFailed, KeptFolder
from .kept_index import KeptIndex

log = logging.getLogger(__name__)

_IN_FLIGHT = 8
"""Reads or writes in flight at a time, each of at most _SEGMENT_BYTES."""
_SEGMENT_BYTES = 1 << 20
_NAME = "slabs"


VectorCall = Callable[[int, list[memoryview], int], int]
"""os.preadv or os.pwritev: takes a file descriptor, memory buffers and the file offset in bytes.
Returns the number of bytes moved."""


class DiskFile:
    """A file of pages and slots on a disk, below host memory. Page and slot ids of the tier give
    their places in the file.

    Each page and each slot is contiguous. A slab of the file holds as many pages as a slab of the
    arena, or one slot. One extra slab is for the probe. The file remains after its node ends.
    Several segments are in flight, because a drive with one request at a time is mostly idle.
    Invariant: a call returns with all of its bytes moved, or raises DiskFailed. The reader compares
    digests, because a read may return wrong bytes.

    Implements `TierStore`, with its thread rule.
    """

    def __init__(self, folder: KeptFolder, layout: CacheLayout, slabs: int) -> None:
        """Reserve the file's space on the disk and keep its old contents. slabs: number of slabs
        without the extra one. Raises DiskFailed."""
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
        """Close the file. Idempotent. REQUIRES: no thread reads or writes it any more."""
        self._threads.close()
        self._let_go()

    def _page_offset(self, page: int) -> int:
        slab, index = divmod(page, self.layout.blocks_per_slab)
        return slab * self._slab + index * self._page

    def _move_all(self, what: str, call: VectorCall, offsets: Sequence[int], rows: Rows) -> None:
        if self._patience.is_over:
            raise DiskFailed(f"the disk of {self._folder} was given up")
        moves = [
            partial(self._move, what, call, memoryview(row[at : at + _SEGMENT_BYTES]), offset + at)
            for offset, row in zip(offsets, rows, strict=True)
            for at in range(0, len(row), _SEGMENT_BYTES)
        ]
        try:
            self._threads.run(moves)
        except DiskFailed:
            self._failed()
            raise
        self._patience.worked()

    def _move(self, what: str, call: VectorCall, memory: memoryview, offset: int) -> None:
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
                "computed; fix it and restart this node, or leave disk_cache out",
                *(self._folder, MOST_FAILURES),
            )


def disk_slab_bytes(layout: CacheLayout) -> int:
    """Return the size of one slab in the disk file, in bytes."""
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
    """Open the tier's file and return its descriptor. Use direct I/O if the file system allows it:
    caching the file in memory would duplicate the host tier."""
    try:
        return folder.open(_NAME, os.O_RDWR | os.O_CREAT | os.O_DIRECT)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
    log.warning("the file in %s is read and written by way of the page cache", folder.path)
    return folder.open(_NAME, os.O_RDWR | os.O_CREAT)


GIB = 2**30
_FEWEST_SLABS = 2
_START_SECONDS = 60.0
"""Seconds allowed to reserve the space, probe the disk and read its index."""


@dataclass(frozen=True)
class DiskMemory:
    """A disk tier: its file, its index, and its write budget. pages_a_second: long-run limit of
    written pages per second; None: no limit."""

    file: DiskFile
    index: KeptIndex
    pages_a_second: float | None = None

    @property
    def counters(self) -> dict[str, int]:
        return self.index.counters

    def close(self) -> None:
        """Close the file and the index, so another node may use the folder. REQUIRES: no copier
        uses them any more."""
        self.file.close()
        self.index.close()


LayoutOf = Callable[[EngineConfig], CacheLayout]


def disk_memory(
    config: EngineConfig, layout_of: LayoutOf, contract: MakeContract
) -> DiskMemory | None:
    """Open the disk tier of a node: reserve its space, probe it and read its index.

    Return None if the config has no disk. layout_of: returns this rank's layout for a config; each
    rank gets its share of disk_cache_gib. contract: makes the settings to compare before another
    run's bytes are used. They include the rank if there are several. Raises EngineConfigError if
    the disk has too little space, returns other bytes than written, or is in use.
    """
    if config.disk_cache is None or config.disk_cache_gib is None:
        return None
    layout = layout_of(config)
    slab = disk_slab_bytes(layout) * config.tensor_parallel
    slabs = int(config.disk_cache_gib * GIB) // slab
    if slabs < _FEWEST_SLABS:
        least = _FEWEST_SLABS * slab / GIB
        raise EngineConfigError(
            f"disk_cache_gib {config.disk_cache_gib} holds {slabs} slabs; give at least {least:.3g}"
        )
    began = time.monotonic()
    parent, agreed = Path(config.disk_cache), contract()
    budget = config.disk_write_budget
    _refuse_other_dtype(config, parent, agreed, layout_of)
    late = DiskFailed(f"it took longer than {_START_SECONDS:g} s to be tried and read")
    try:
        file, index = within(_START_SECONDS, lambda: _opened(parent, agreed, layout, slabs), late)
    except DiskFailed as error:
        raise EngineConfigError(
            f"disk_cache {config.disk_cache}: {error}; give another folder, less disk_cache_gib, "
            "or leave them out"
        ) from error
    log.info(
        "%.2f GiB in %s below host memory: %d records of before in %.1f s, %d torn, %d folders of "
        "other models are left alone",
        *(config.disk_cache_gib, config.disk_cache, index.found, time.monotonic() - began),
        *(index.counters["torn"], index.folder.others),
    )
    return DiskMemory(file, index, None if budget is None else budget * 1e6 / layout.page_bytes)


def _refuse_other_dtype(
    config: EngineConfig, parent: Path, agreed: Mapping[str, str], layout_of: LayoutOf
) -> None:
    """Raise EngineConfigError if the configured dtype is auto and the folder holds this model's
    data in another dtype. The data would be silently useless."""
    if config.dtype != AUTO_DTYPE or (parent / folder_of(contract_digest(agreed))).exists():
        return
    for dtype in set(DTYPES) - {config.compute_dtype}:
        other = replace(config, dtype=dtype)
        stored = {field.name: field.text for field in layout_of(other).described}
        theirs = {**agreed, **{name: text for name, text in stored.items() if name in agreed}}
        kept = parent / folder_of(contract_digest(theirs))
        if kept.exists():
            raise EngineConfigError(
                f"disk_cache {parent} holds what a node with --dtype {dtype} kept ({kept.name}), "
                f"and dtype auto is {config.compute_dtype} here: give --dtype {dtype} to use it, "
                f"--dtype {config.compute_dtype} to begin anew beside it, or another folder"
            )


def _opened(
    parent: Path, contract: Mapping[str, str], layout: CacheLayout, slabs: int
) -> tuple[DiskFile, KeptIndex]:
    folder = KeptFolder(parent, contract)
    try:
        file = DiskFile(folder, layout, slabs)
        probe(file)
        return file, KeptIndex(folder, layout, slabs)
    except DiskFailed:
        folder.close()
        raise


def probe(file: DiskFile) -> None:
    """Write random bytes to the extra slab's slot and read them back. Raises DiskFailed if the disk
    fails or returns other bytes."""
    row = PassingRows().rows(1, file.layout.slot_bytes)[0]
    written = np.random.default_rng().integers(0, 256, len(row), dtype=np.uint8)
    row[:] = written
    file.put_slot(file.slabs, row)
    row[:] = 0
    file.get_slot(file.slabs, row)
    if not np.array_equal(row, written):
        raise DiskFailed("what it returns is not what was written to it")
