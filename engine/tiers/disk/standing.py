"""Records of a disk's index, and the state of the disk that they add up to.

Pure but for Standing, which one thread at a time changes.
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass

import msgspec
import numpy as np
import xxhash
from numpy.typing import NDArray

from tasuki.pycache.layout import PAGE_TOKENS, CacheLayout

MAGIC = b"tasukiK2"
"""Begins each record; a change of what records mean changes it."""
_HEAD = struct.Struct("<8sIQ16s")
_COVERED = struct.Struct("<IQ")
DIGEST_BYTES = 16
MOST_BYTES = 1 << 30
"""Of a record."""


class Heading(msgspec.Struct, tag="heading", frozen=True, array_like=True):
    """The first of an index. contract: its digest, hex."""

    contract: str


class Kept(msgspec.Struct, tag="kept", frozen=True, array_like=True):
    """A state was written, and the pages of its path that were not there. start: tokens before
    them; above: the page that ends there, and the number of the record that wrote it. tokens,
    pages, digests: little-endian int32, int32, 16 bytes each. kind: the state's."""

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
    """These are about to be written: what stood there goes. int32 each."""

    pages: bytes
    slots: bytes


Record = Heading | Kept | Taken
_DECODER = msgspec.msgpack.Decoder(Record)


def encoded(number: int, record: Record) -> bytes:
    body = msgspec.msgpack.encode(record)
    return _HEAD.pack(MAGIC, len(body), number, _digest(number, body)) + body


def records_in(content: bytes) -> Iterator[tuple[int, Record] | None]:
    """The records of a disk's index, as bytes: each with a length, a number and a digest of its
    own.

    A record that is torn, or that rotted, fails its digest, and those behind it are found by their
    marks. Pure.

    With their numbers, in order. None: something there is no whole record.
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
    """A state with all of its path. pages: in the order of the prompt."""

    salt: bytes
    tokens: NDArray[np.int32]
    pages: list[int]
    slot: int
    kind: str

    @property
    def identity(self) -> bytes:
        """16 bytes: equal where it is the same state at the same places."""
        total = xxhash.xxh3_128(len(self.salt).to_bytes(8, "little") + self.salt)
        total.update(self.kind.encode() + self.slot.to_bytes(8, "little"))
        total.update(len(self.tokens).to_bytes(8, "little") + self.tokens.tobytes())
        total.update(np.array(self.pages, "<i4").tobytes())
        return total.digest()


class Standing:
    """What the records of an index say that a disk holds now: an id is of the last record with it.

    Thread rule: one thread at a time. Invariant: a slab holds pages or a slot; who takes one of
    them takes it from the other.
    """

    def __init__(self, layout: CacheLayout, slabs: int) -> None:
        self._per_slab = layout.pages_per_slab
        self._stride = layout.blocks_per_slab
        self._slabs = slabs
        self.records: dict[int, Kept] = {}
        # The record of each page and its place there, of each slot; 0 where nothing is of use.
        self._page_record = np.zeros(slabs * self._per_slab, np.int64)
        self._page_place = np.zeros(slabs * self._per_slab, np.int32)
        self._slot_record = np.zeros(slabs, np.int64)

    def add(self, number: int, record: Record) -> bool:
        """False: it names ids that this disk does not have, or is not whole."""
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
        """0: none."""
        return int(self._page_record[self._dense(np.array([page]))[0]])

    def live(self) -> Iterator[tuple[int, Kept]]:
        """Records of which anything is of use, in order."""
        held = {*np.unique(self._page_record).tolist(), *np.unique(self._slot_record).tolist()}
        for number, record in self.records.items():
            if number in held:
                yield number, record

    def page_records(self) -> dict[int, int]:
        """The record of each page that is of use."""
        dense = np.flatnonzero(self._page_record)
        ids = dense // self._per_slab * self._stride + dense % self._per_slab
        return dict(zip(ids.tolist(), self._page_record[dense].tolist(), strict=True))

    def overtaken(self) -> Taken:
        """Ids of live records that are of no use: their last owner is no live record."""
        pages, slots = [np.empty(0, np.int32)], []
        for _, record in self.live():
            ids = _ids(record.pages)
            pages.append(ids[self._page_record[self._dense(ids)] == 0])
            if self._slot_record[record.slot] == 0:
                slots.append(record.slot)
        return Taken(np.concatenate(pages).tobytes(), np.array(slots, np.int32).tobytes())

    def digests(self) -> tuple[dict[int, int], dict[int, int]]:
        """Of pages and of slots that are of use, by id."""
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
        """Of each state that is of use, in the order in which they were written. None: of one whose
        path is not whole."""
        for number, record in self.live():
            if self._slot_record[record.slot] == number:
                yield self._path(number, record)

    def kept_of(self) -> bytes:
        """The identities of what stands whole, one behind the other."""
        return b"".join(path.identity for path in self.paths() if path is not None)

    def _path(self, number: int, record: Kept) -> KeptPath | None:
        ids = _ids(record.pages)
        tokens = np.frombuffer(record.tokens, "<i4")
        slot, kind, salt = record.slot, record.kind, record.salt
        parts = [(tokens, ids)]
        # A loop: a path has as many records as its conversation had turns.
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
