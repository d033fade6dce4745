"""The records of a disk's index, as bytes: each with a length, a number and a digest of its own.

A record that is torn, or that rotted, fails its digest, and those behind it are found by their
marks. Pure.
"""

import struct
from collections.abc import Iterator

import msgspec
import xxhash

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
    """With their numbers, in order. None: something there is no whole record."""
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
