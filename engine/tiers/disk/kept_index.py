"""The index of a disk tier, in a file next to the data: its records, the contents they describe,
their use after a restart."""

import logging
import os
import struct
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import msgspec
import numpy as np
import xxhash
from numpy.typing import NDArray

from tasuki.engine.tiers.copy_job import CopyJob
from tasuki.engine.tiers.digests import TierDigests
from tasuki.pycache._cpp_cache import CheckpointKind
from tasuki.pycache.keys import Keys
from tasuki.pycache.layout import PAGE_TOKENS, CacheLayout
from tasuki.pycache.prefix_cache import HybridPrefixCache

from .kept_folder import DiskFailed, KeptFolder

MAGIC = b"tasukiK2"
"""The magic bytes at each record's start. They change with the format or meaning of records."""
_HEAD = struct.Struct("<8sIQ16s")
_COVERED = struct.Struct("<IQ")
DIGEST_BYTES = 16
MOST_BYTES = 1 << 30
"""Most bytes of one record; a longer length is corrupt."""


class Heading(msgspec.Struct, tag="heading", frozen=True, array_like=True):
    """The first record of an index. contract: hexadecimal digest of the settings (the model's, the
    dtype's, the layout's) of its data."""

    contract: str


class Kept(msgspec.Struct, tag="kept", frozen=True, array_like=True):
    """A record of a written state and of the pages written together with it.

    start: number of the prompt's tokens before the first of these pages. above: id of the page
    ending at `start`, and the number of its record; None at the prompt's start. tokens: token ids,
    little-endian int32. kind: reason for keeping the state. pages: page ids, little-endian int32.
    digests: 16 bytes for each page. slot: the state's slot id.
    """

    salt: bytes
    start: int
    above: tuple[int, int] | None
    tokens: bytes
    kind: str
    pages: bytes
    digests: bytes
    slot: int
    slot_digest: bytes


class Taken(msgspec.Struct, tag="taken", frozen=True, array_like=True):
    """A record of pages and slots about to be overwritten: their old contents become invalid.
    pages, slots: ids, int32 each."""

    pages: bytes
    slots: bytes


Record = Heading | Kept | Taken
_DECODER = msgspec.msgpack.Decoder(Record)


def encoded(number: int, record: Record) -> bytes:
    body = msgspec.msgpack.encode(record)
    return _HEAD.pack(MAGIC, len(body), number, _digest(number, body)) + body


def records_in(content: bytes) -> Iterator[tuple[int, Record] | None]:
    """Yield the records in an index file's bytes, in order, each with its number.

    Each record has a length, a number and its own digest. A torn or corrupted record fails its
    digest. The records after it are found by their magic bytes. Pure.

    Yield None for bytes without a whole record.
    """
    view = memoryview(content)
    at = 0
    while at < len(content):
        found = _record_at(view, at)
        if found is not None:
            end, number, record = found
            yield number, record
            at = end
            continue
        yield None
        at = content.find(MAGIC, at + 1)
        if at < 0:
            return


def _record_at(view: memoryview, at: int) -> tuple[int, int, Record] | None:
    if at + _HEAD.size > len(view):
        return None
    magic, length, number, digest = _HEAD.unpack_from(view, at)
    end = at + _HEAD.size + length
    if magic != MAGIC or length > MOST_BYTES or end > len(view):
        return None
    body = view[at + _HEAD.size : end]
    if _digest(number, body) != digest:
        return None
    try:
        return end, number, _DECODER.decode(body)
    except (msgspec.DecodeError, msgspec.ValidationError):
        return None


def _digest(number: int, body: bytes | memoryview) -> bytes:
    total = xxhash.xxh3_128(_COVERED.pack(len(body), number))
    total.update(body)
    return total.digest()


Ids = NDArray[np.int32]


@dataclass(frozen=True)
class KeptPath:
    """A state on the disk with all of its prompt's pages. tokens: all tokens covered by the state.
    pages: page ids in the order of the prompt. kind: reason for keeping the state."""

    salt: bytes
    tokens: NDArray[np.int32]
    pages: list[int]
    slot: int
    kind: str

    @property
    def identity(self) -> bytes:
        """Return 16 bytes to identify the path: equal for the same state with the same ids."""
        total = xxhash.xxh3_128(len(self.salt).to_bytes(8, "little") + self.salt)
        total.update(self.kind.encode() + self.slot.to_bytes(8, "little"))
        total.update(len(self.tokens).to_bytes(8, "little") + self.tokens.tobytes())
        total.update(np.array(self.pages, "<i4").tobytes())
        return total.digest()


class Standing:
    """The current contents of a disk according to its index. A page or slot belongs to the last
    record naming it.

    Thread rule: one thread at a time. Invariant: a slab holds pages or a slot. A record of pages in
    a slab invalidates the slab's slot, and the reverse.
    """

    def __init__(self, layout: CacheLayout, slabs: int) -> None:
        self._per_slab = layout.pages_per_slab
        self._stride = layout.blocks_per_slab
        self._slabs = slabs
        self.records: dict[int, Kept] = {}
        # The record of each page and its place there, and the record of each slot; 0 without a
        # usable one.
        self._page_record = np.zeros(slabs * self._per_slab, np.int64)
        self._page_place = np.zeros(slabs * self._per_slab, np.int32)
        self._slot_record = np.zeros(slabs, np.int64)

    def add(self, number: int, record: Record) -> bool:
        """Add a record. Return False if it names ids outside this disk, or its fields have
        inconsistent lengths."""
        if isinstance(record, Taken):
            pages, slots = _ids(record.pages), _ids(record.slots)
            self._take(pages[self._are_pages(pages)], slots[self._are_slots(slots)])
        elif isinstance(record, Kept):
            return self._keep(number, record)
        return True

    def _keep(self, number: int, record: Kept) -> bool:
        pages, slots = _ids(record.pages), np.array([record.slot])
        if not (
            self._are_pages(pages).all() and self._are_slots(slots).all() and _is_whole(record)
        ):
            return False
        self._take(pages, slots)
        dense = self._dense(pages)
        self._page_record[dense] = number
        self._page_place[dense] = np.arange(len(pages))
        self._slot_record[record.slot] = number
        self.records[number] = record
        return True

    def _take(self, pages: Ids, slots: Ids) -> None:
        self._page_record[self._dense(pages)] = 0
        self._slot_record[pages // self._stride] = 0
        self._slot_record[slots] = 0
        self._page_record.reshape(self._slabs, -1)[slots] = 0

    def record_of_page(self, page: int) -> int:
        """Return the number of the record owning the page; 0: none."""
        return int(self._page_record[self._dense(np.array([page]))[0]])

    def live(self) -> Iterator[tuple[int, Kept]]:
        """Yield the records with any valid page or slot, in order, each with its number."""
        held = {*np.unique(self._page_record).tolist(), *np.unique(self._slot_record).tolist()}
        for number, record in self.records.items():
            if number in held:
                yield number, record

    def page_records(self) -> dict[int, int]:
        """Return the record number of each valid page, by page id."""
        dense = np.flatnonzero(self._page_record)
        ids = dense // self._per_slab * self._stride + dense % self._per_slab
        return dict(zip(ids.tolist(), self._page_record[dense].tolist(), strict=True))

    def overtaken(self) -> Taken:
        """Return the ids named by live records (records with any valid id) but invalid now. Their
        last owner is no live record."""
        pages, slots = [np.empty(0, np.int32)], []
        for _, record in self.live():
            ids = _ids(record.pages)
            pages.append(ids[self._page_record[self._dense(ids)] == 0])
            if self._slot_record[record.slot] == 0:
                slots.append(record.slot)
        return Taken(np.concatenate(pages).tobytes(), np.array(slots, np.int32).tobytes())

    def digests(self) -> tuple[dict[int, int], dict[int, int]]:
        """Return the digests of valid pages by page id, and of valid slots by slot id."""
        pages, slots = {}, {}
        for number, record in self.live():
            ids = _ids(record.pages)
            for place in np.flatnonzero(self._is_of(number, ids)).tolist():
                start = place * DIGEST_BYTES
                digest = record.digests[start : start + DIGEST_BYTES]
                pages[int(ids[place])] = int.from_bytes(digest, "big")
            if self._slot_record[record.slot] == number:
                slots[record.slot] = int.from_bytes(record.slot_digest, "big")
        return pages, slots

    def paths(self) -> Iterator[KeptPath | None]:
        """Yield the path of each valid state, in the order of writing; None for a state with
        missing pages."""
        for number, record in self.live():
            if self._slot_record[record.slot] == number:
                yield self._path(number, record)

    def kept_of(self) -> bytes:
        """Return the concatenated 16-byte identities of all states with complete paths."""
        return b"".join(path.identity for path in self.paths() if path is not None)

    def _path(self, number: int, record: Kept) -> KeptPath | None:
        ids = _ids(record.pages)
        tokens = np.frombuffer(record.tokens, "<i4")
        slot, kind, salt = record.slot, record.kind, record.salt
        parts = [(tokens, ids)]
        # A loop, not a recursion: a path has as many records as its conversation had turns.
        while self._is_of(number, ids).all():
            if record.above is None:
                found = parts[::-1]
                return KeptPath(
                    salt,
                    np.concatenate([part[0] for part in found]).astype(np.int32),
                    np.concatenate([part[1] for part in found]).tolist(),
                    slot,
                    kind,
                )
            page, number_above = record.above
            if number_above >= number or not self._are_pages(np.array([page])).all():
                return None
            if self.record_of_page(page) != number_above:
                return None
            place = int(self._page_place[self._dense(np.array([page]))[0]]) + 1
            above = self.records[number_above]
            if above.start + place * PAGE_TOKENS != record.start or above.salt != salt:
                return None
            number, record = number_above, above
            tokens = np.frombuffer(above.tokens, "<i4")[: place * PAGE_TOKENS]
            ids = _ids(above.pages)[:place]
            if len(tokens) != place * PAGE_TOKENS:
                return None
            parts.append((tokens, ids))
        return None

    def _is_of(self, number: int, pages: Ids) -> NDArray[np.bool_]:
        found: NDArray[np.bool_] = self._page_record[self._dense(pages)] == number
        return found

    def _dense(self, pages: Ids) -> Ids:
        return pages // self._stride * self._per_slab + pages % self._stride

    def _are_pages(self, pages: Ids) -> NDArray[np.bool_]:
        slabs, places = np.divmod(pages, self._stride)
        return (pages >= 0) & (slabs < self._slabs) & (places < self._per_slab)

    def _are_slots(self, slots: Ids) -> NDArray[np.bool_]:
        return (slots >= 0) & (slots < self._slabs)


def _ids(content: bytes) -> Ids:
    return np.frombuffer(content[: len(content) // 4 * 4], "<i4")


def _is_whole(record: Kept) -> bool:
    tokens, pages = len(record.tokens) // 4, len(record.pages) // 4
    return (
        record.start % PAGE_TOKENS == 0
        and (record.start > 0) == (record.above is not None)
        and pages == -(-tokens // PAGE_TOKENS)
        and len(record.digests) == pages * DIGEST_BYTES
        and len(record.slot_digest) == DIGEST_BYTES
        and record.start + tokens > 0
    )


log = logging.getLogger(__name__)

_NAME, _NEXT_NAME = "index", "index.next"
_LEAST_BYTES = 64 << 20
"""Size in bytes below which an index file is never compacted."""
_MOST_GROWTH = 4
"""Growth of an index file over its last compacted size, as a factor, to compact it again."""
_MOST_READ = 1 << 30
"""Most bytes of one system read or write."""


class KeptIndex:
    """The index of a disk's contents, in a file next to them, read by a restarted node.

    Records are appended and never synced. A killed node loses the record it was writing. A stopping
    machine may lose or tear other records, and may lose bytes of recorded pages. So each load
    compares digests. When most of the file is obsolete, valid records go to a second file. The
    second file then takes the index's name. Thread rule: the opening thread until a copier has the
    index; then the copier's thread alone. Invariant: a page or slot is recorded as taken before it
    is written. It is recorded as kept after it was completely written.
    """

    def __init__(self, folder: KeptFolder, layout: CacheLayout, slabs: int) -> None:
        """Read the existing index and write its valid records anew. Raises DiskFailed."""
        self.folder = folder
        self._layout = layout
        self._slabs = slabs
        self._heading = encoded(0, Heading(folder.contract))
        self.counters = dict.fromkeys(("restored", "lost", "torn", "failed"), 0)
        """Counters. restored: states restored at the start. lost: states not restored, because
        pages of their path are missing. torn: torn or invalid records. failed: records not accepted
        by the disk."""
        try:
            self._last = 0
            standing, self.counters["torn"] = self._read()
            self.standing: Standing | None = standing
            """The disk's contents at opening, until restore() uses them; then None."""
            self.found = len(standing.records)
            """Number of states with a record at opening."""
            self._page_record = standing.page_records()
            self._last += 1
            self._file: int | None
            self._file, self._size = self._written_anew(standing)
            self._base = self._size
        except OSError as error:
            raise DiskFailed(f"the index in {folder.path} cannot be used: {error}") from error

    def taken(self, job: CopyJob) -> None:
        """Record the old contents of the write's target pages and slot as invalid."""
        pages = np.array([target for _, target in job.pages], np.int32)
        slots = np.array([] if job.slot is None else [job.slot[1]], np.int32)
        for page in pages.tolist():
            self._page_record.pop(page, None)
        self._append(Taken(pages.tobytes(), slots.tobytes()))

    def kept(self, job: CopyJob, written: TierDigests) -> None:
        """Record the write's target pages and slot as completely written. written: their digests.
        REQUIRES: the job has a label."""
        label, slot = job.label, job.slot
        assert label is not None and slot is not None
        pages = [target for _, target in job.pages]
        above: tuple[int, int] | None = None
        if label.above is not None:
            number = self._page_record.get(label.above)
            if number is None:
                # The disk did not take the record of the page above.
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
        """Invalidate all records by truncating the file. This works on a full disk too."""
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
        """Close the index file and its folder. Idempotent. REQUIRES: no copier uses them."""
        descriptor, self._file = self._file, None
        if descriptor is not None:
            os.close(descriptor)
        self.folder.close()

    def _append(self, record: Record) -> int | None:
        """Append a record to the file and return its number; None if the disk rejected it."""
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
        """Read the index file. Return the disk's contents, and the number of records torn or naming
        ids outside this disk."""
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
        """Write the valid records to another file, and rename it to the index's name once complete.
        Return its descriptor and its size in bytes."""
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
    """Append all bytes at the file's end. Return their number."""
    left = memoryview(content)
    while left:
        left = left[os.write(file, left[:_MOST_READ]) :]
    return len(content)


def _read_all(file: int) -> bytes:
    size = os.fstat(file).st_size
    found = bytearray()
    while len(found) < size:
        segment = os.pread(file, min(size - len(found), _MOST_READ), len(found))
        if not segment:
            break
        found += segment
    return bytes(found)


def restore(
    cache: HybridPrefixCache, tier: int, index: KeptIndex, others: Sequence[bytes] = ()
) -> None:
    """Restore the states kept on a disk into the prefix tree of a starting node.

    tier: the disk's number among the tiers. others: results of kept_of() from the other ranks. A
    state is restored only if all ranks have it with the same page and slot ids. REQUIRES: the cache
    has served no request.
    """
    standing, index.standing = index.standing, None
    if standing is None:
        return
    began = time.monotonic()
    counters = index.counters
    size = DIGEST_BYTES
    theirs = [{kept[at : at + size] for at in range(0, len(kept), size)} for kept in others]
    for path in standing.paths():
        held = path is not None and all(path.identity in kept for kept in theirs)
        if path is not None and held and _stands(cache, tier, path):
            counters["restored"] += 1
        else:
            counters["lost"] += 1
    log.info(
        "%d states of before stand on the disk again, in %.1f s; of %d the path is not whole, or "
        "another has it",
        *(counters["restored"], time.monotonic() - began, counters["lost"]),
    )


def _stands(cache: HybridPrefixCache, tier: int, path: KeptPath) -> bool:
    try:
        kind = CheckpointKind(path.kind)
    except ValueError:
        return False
    return cache.restore(
        tier, Keys(path.tokens), salt=path.salt, pages=path.pages, slot=path.slot, kind=kind
    )
