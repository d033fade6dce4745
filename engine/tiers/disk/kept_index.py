"""The index of a disk tier in a file beside it, and its use after a restart.

Owns the index file. Thread rule: the thread that opens it, and then the copier's alone.
"""

import logging
import os
import time
from collections.abc import Sequence

import numpy as np

from tasuki.engine.tiers.copy_job import CopyJob
from tasuki.engine.tiers.digests import TierDigests
from tasuki.pycache._cpp_cache import CheckpointKind
from tasuki.pycache.layout import CacheLayout
from tasuki.pycache.prefix_cache import HybridPrefixCache

from .kept_folder import DiskFailed, KeptFolder
from .standing import (
    DIGEST_BYTES,
    Heading,
    Kept,
    KeptPath,
    Record,
    Standing,
    Taken,
    encoded,
    records_in,
)

log = logging.getLogger(__name__)

_NAME, _NEXT_NAME = "index", "index.next"
_LEAST_BYTES = 64 << 20
"""Below it a file is not written anew."""
_MOST_GROWTH = 4
"""Times what was of use when it was written last."""
_MOST_READ = 1 << 30
"""Bytes of one read, or write, of the system."""


class KeptIndex:
    """The index of what was written to a disk, in a file beside it: what a node that starts knows.

    Records are appended, and never synchronised: a node that is killed loses the record that it was
    writing; a machine that stops may lose or tear others, and may have lost the bytes of those that
    it kept. Whoever loads compares digests. When most of the file is of no use any more, what is
    goes to another file, which then takes its name. Thread rule: who opens it until a copier has
    it; then the copier's thread alone. Invariant: before an id is written, it is recorded as taken;
    what is recorded as kept was written whole before.
    """

    def __init__(self, folder: KeptFolder, layout: CacheLayout, slabs: int) -> None:
        """Reads what there is, and writes what is of use of it anew. Raises DiskFailed."""
        self.folder = folder
        self._layout = layout
        self._slabs = slabs
        self._heading = encoded(0, Heading(folder.contract))
        self.counters = dict.fromkeys(("restored", "lost", "torn", "failed"), 0)
        """States that stood again, and those whose path was not whole; records that were not whole;
        appends that the disk did not take."""
        try:
            self._last = 0
            standing, self.counters["torn"] = self._read()
            self.standing: Standing | None = standing
            """What was kept when it was opened, until it is used."""
            self.found = len(standing.records)
            """Records of states when it was opened."""
            self._page_record = standing.page_records()
            self._last += 1
            self._file: int | None
            self._file, self._size = self._written_anew(standing)
            self._base = self._size
        except OSError as error:
            raise DiskFailed(f"the index in {folder.path} cannot be used: {error}") from error

    def taken(self, job: CopyJob) -> None:
        """What stood at the job's targets goes."""
        pages = np.array([target for _, target in job.pages], np.int32)
        slots = np.array([] if job.slot is None else [job.slot[1]], np.int32)
        self._forget(pages.tolist())
        self._append(Taken(pages.tobytes(), slots.tobytes()))

    def kept(self, job: CopyJob, written: TierDigests) -> None:
        """The job's targets were written whole. REQUIRES: it has a label."""
        label, slot = job.label, job.slot
        assert label is not None and slot is not None
        pages = [target for _, target in job.pages]
        above: tuple[int, int] | None = None
        if label.above is not None:
            number = self._page_record.get(label.above)
            if number is None:
                # Its own record was not taken by the disk.
                return
            above = label.above, number
        number = self._append(
            Kept(
                label.salt,
                label.start,
                above,
                label.tokens.astype("<i4").tobytes(),
                label.kind,
                np.array(pages, "<i4").tobytes(),
                b"".join(_bytes(written.pages[page]) for page in pages),
                slot[1],
                _bytes(written.slots[slot[1]]),
            )
        )
        if number is not None:
            self._page_record.update(dict.fromkeys(pages, number))
        if self._size > max(_LEAST_BYTES, _MOST_GROWTH * self._base):
            self._compact()

    def emptied(self) -> None:
        """Nothing that was kept is of use any more: a full disk takes that too."""
        self._page_record.clear()
        try:
            assert self._file is not None
            os.ftruncate(self._file, len(self._heading))
        except OSError as error:
            self.counters["failed"] += 1
            log.error(
                "%s cannot be emptied, and a restart finds what was flushed: remove the folder: %s",
                *(self.folder.path / _NAME, error),
            )
        else:
            self._size = self._base = len(self._heading)

    def close(self) -> None:
        """Idempotent. REQUIRES: no copier has it any more."""
        descriptor, self._file = self._file, None
        if descriptor is not None:
            os.close(descriptor)
        self.folder.close()

    def _forget(self, pages: Sequence[int]) -> None:
        for page in pages:
            self._page_record.pop(page, None)

    def _append(self, record: Record) -> int | None:
        """Its number; None: the disk did not take it."""
        self._last += 1
        try:
            assert self._file is not None
            self._size += _write_all(self._file, encoded(self._last, record))
        except OSError as error:
            if self.counters["failed"] == 0:
                log.error(
                    "%s takes no records: what is written from now on a restart does not find: %s",
                    *(self.folder.path / _NAME, error),
                )
            self.counters["failed"] += 1
            return None
        return self._last

    def _read(self) -> tuple[Standing, int]:
        """And how many records are torn, or name what this disk does not have."""
        standing, torn = Standing(self._layout, self._slabs), 0
        try:
            file = self.folder.open(_NAME, os.O_RDONLY)
        except FileNotFoundError:
            return standing, 0
        try:
            content = _read_all(file)
        finally:
            os.close(file)
        is_ours = False
        for found in records_in(content):
            if found is None:
                torn += 1
                continue
            number, record = found
            self._last = max(self._last, number)
            if isinstance(record, Heading):
                is_ours = record.contract == self.folder.contract
            elif is_ours:
                torn += not standing.add(number, record)
        return standing, torn

    def _compact(self) -> None:
        assert self._file is not None
        before = self._file
        self._last += 1
        try:
            self._file, self._size = self._written_anew(self._read()[0])
        except OSError as error:
            log.warning("%s cannot be written anew: %s", self.folder.path / _NAME, error)
        else:
            os.close(before)
        self._base = self._size

    def _written_anew(self, standing: Standing) -> tuple[int, int]:
        """To another file, which takes this one's name once it is whole: its descriptor, size."""
        folder = self.folder
        file = folder.open(_NEXT_NAME, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_TRUNC)
        try:
            size = _write_all(file, self._heading)
            for number, record in standing.live():
                size += _write_all(file, encoded(number, record))
            size += _write_all(file, encoded(self._last, standing.overtaken()))
            os.rename(folder.path / _NEXT_NAME, folder.path / _NAME)
        except OSError:
            os.close(file)
            raise
        return file, size


def _bytes(digest: int) -> bytes:
    return digest.to_bytes(DIGEST_BYTES, "big")


def _write_all(file: int, content: bytes) -> int:
    """At the file's end. Returns how many bytes."""
    left = memoryview(content)
    while left:
        left = left[os.write(file, left[:_MOST_READ]) :]
    return len(content)


def _read_all(file: int) -> bytes:
    size = os.fstat(file).st_size
    found = bytearray()
    while len(found) < size:
        piece = os.pread(file, min(size - len(found), _MOST_READ), len(found))
        if not piece:
            break
        found += piece
    return bytes(found)


def restore(
    cache: HybridPrefixCache, tier: int, index: KeptIndex, others: Sequence[bytes] = ()
) -> None:
    """What a disk kept stands in the tree of a node that starts.

    Give the tree each state that is of use, once. others: what other ranks kept, as of kept_of(): a
    state stands where all of them have it at the same places. REQUIRES: the cache has served
    nobody.
    """
    standing, index.standing = index.standing, None
    if standing is None:
        return
    began = time.monotonic()
    counters = index.counters
    everywhere = [_identities(kept) for kept in others]
    for path in standing.paths():
        if path is not None and _is_in(path, everywhere) and _stands(cache, tier, path):
            counters["restored"] += 1
        else:
            counters["lost"] += 1
    log.info(
        "%d states of before stand on the disk again, in %.1f s; of %d the path is not whole, or "
        "another has it",
        *(counters["restored"], time.monotonic() - began, counters["lost"]),
    )


def _identities(kept: bytes) -> frozenset[bytes]:
    return frozenset(kept[at : at + 16] for at in range(0, len(kept), 16))


def _is_in(path: KeptPath, everywhere: Sequence[frozenset[bytes]]) -> bool:
    return not everywhere or all(path.identity in kept for kept in everywhere)


def _stands(cache: HybridPrefixCache, tier: int, path: KeptPath) -> bool:
    try:
        kind = CheckpointKind(path.kind)
    except ValueError:
        return False
    return cache.restore(
        tier, path.tokens, salt=path.salt, pages=path.pages, slot=path.slot, kind=kind
    )
