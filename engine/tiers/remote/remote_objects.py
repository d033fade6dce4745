"""The pages, slots and states of a remote tier as objects: their names, manifests and writes.

An object's name is the digest of its bytes. So no node overwrites an object with another, and equal
bytes are written once. Pages written together are one object. The journal writes the manifest of a
state after all objects named in it. Nothing is deleted here, because other nodes may read it; let
the bucket expire old objects.

A manifest names the objects of the state and of all KV before it. It holds their digests and the
tokens themselves. Its reader compares the digests and tokens and trusts no name.

States are found by listing a folder. The folder belongs to the longest prefix of the state with a
length of LEAST_TOKENS times a power of two. So states of one folder share at least half of their
tokens. A prompt has one folder to list for each such power. Manifests and names are pure.

Thread rule: see `TierStore` and `WriteJournal`. adopted() belongs to the engine loop, for ids not
used by any copy.
"""

import hashlib
import logging
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import msgspec
import numpy as np
import xxhash
from numpy.typing import NDArray

from tasuki.engine.tiers.copy_job import CopyJob
from tasuki.engine.tiers.digests import TierDigests
from tasuki.engine.tiers.store import IoThreads, Row, Rows
from tasuki.pycache.layout import PAGE_TOKENS, CacheLayout

from .bucket import Bucket, RemoteFailed

Tokens = NDArray[np.int32]
LEAST_TOKENS = 256
"""Fewest tokens of a stored state. Shorter prefixes are computed faster than looked up."""
MOST_BYTES = 64 << 20
"""Most bytes of a manifest, above the need of any prompt."""
_MAGIC = b"tasukiR1"
_DIGEST_BYTES = 16
_FOLDER = "at"
_KEY_DIGITS, _COUNT_DIGITS = 32, 9


class Pages(msgspec.Struct, frozen=True, array_like=True):
    """A range of pages in one object: `count` pages of the object `name`, from page `first` on."""

    name: str
    first: int
    count: int


class Manifest(msgspec.Struct, frozen=True, array_like=True):
    """The description of a stored state and its prompt. tokens: token ids, little-endian int32.
    kind: reason for keeping the state. pages: places of all pages, in the order of the prompt.
    digests: 16 bytes for each page, in this order. slot: name of the object with the state."""

    salt: bytes
    tokens: bytes
    kind: str
    pages: tuple[Pages, ...]
    digests: bytes
    slot: str
    slot_digest: bytes

    @property
    def prompt(self) -> Tokens:
        return np.frombuffer(self.tokens, "<i4").astype(np.int32)

    @property
    def page_digests(self) -> list[int]:
        found = self.digests
        return [
            int.from_bytes(found[at : at + _DIGEST_BYTES], "big")
            for at in range(0, len(found), _DIGEST_BYTES)
        ]

    @property
    def places(self) -> list[tuple[str, int]]:
        """Return the place of each page in the order of the prompt: the object's name, and the
        page's number in the object."""
        return [(part.name, part.first + at) for part in self.pages for at in range(part.count)]

    @property
    def is_whole(self) -> bool:
        tokens = len(self.tokens) // 4
        count = -(-tokens // PAGE_TOKENS)
        return (
            tokens >= LEAST_TOKENS
            and len(self.tokens) % 4 == 0
            and all(part.first >= 0 and part.count > 0 for part in self.pages)
            and sum(part.count for part in self.pages) == count
            and len(self.digests) == count * _DIGEST_BYTES
            and len(self.slot_digest) == _DIGEST_BYTES
        )


_DECODER = msgspec.msgpack.Decoder(Manifest)


def encoded(manifest: Manifest) -> bytes:
    body = msgspec.msgpack.encode(manifest)
    return _MAGIC + xxhash.xxh3_128_digest(body) + body


def decoded(content: bytes) -> Manifest | None:
    """Return the manifest in the bytes of its object; None if they are torn or invalid."""
    head = len(_MAGIC) + _DIGEST_BYTES
    body = content[head:]
    if content[:head] != _MAGIC + xxhash.xxh3_128_digest(body):
        return None
    try:
        found = _DECODER.decode(body)
    except (msgspec.DecodeError, msgspec.ValidationError):
        return None
    return found if found.is_whole else None


def runs_of(places: Iterable[tuple[str, int]]) -> tuple[Pages, ...]:
    """Combine pages to the fewest ranges of neighbours in an object. places: (object name, page
    number in the object) of each page."""
    found: list[Pages] = []
    for name, at in places:
        last = found[-1] if found else None
        if last is not None and last.name == name and last.first + last.count == at:
            found[-1] = Pages(name, last.first, last.count + 1)
        else:
            found.append(Pages(name, at, 1))
    return tuple(found)


def digest_bytes(digests: Iterable[int]) -> bytes:
    return b"".join(each.to_bytes(_DIGEST_BYTES, "big") for each in digests)


class ObjectKeys:
    """Hash keys of a prompt's prefixes, to name and find their states."""

    def __init__(self, salt: bytes, tokens: Tokens) -> None:
        self._salt = len(salt).to_bytes(8, "little") + salt
        self._tokens = tokens.astype("<i4")

    def __len__(self) -> int:
        return len(self._tokens)

    def of(self, counts: Sequence[int]) -> list[str]:
        """Return the hash keys of the prefixes with these token counts. counts: ascending."""
        total, done, found = hashlib.sha256(self._salt), 0, []
        for count in counts:
            total.update(self._tokens[done:count].tobytes())
            done = count
            found.append(total.copy().hexdigest()[:_KEY_DIGITS])
        return found

    def folders(self) -> list[str]:
        """Return the folders of the store with possible states of a prefix of this prompt, for the
        longest prefix first."""
        counts = list(_levels(len(self)))
        return [f"{_FOLDER}/{key}" for key in reversed(self.of(counts))]

    def matching(self, names: Iterable[str], beyond: int) -> str | None:
        """Return the name of the state with the longest proper prefix of this prompt. names: names
        of states, as listed. None: no state covers more than `beyond` tokens."""
        parsed = [(found, name) for name in names if (found := _parsed(name)) is not None]
        asked = sorted({count for (count, _), _ in parsed if beyond < count < len(self)})
        keys = dict(zip(asked, self.of(asked), strict=True))
        fits = [(count, name) for (count, key), name in parsed if keys.get(count) == key]
        return max(fits)[1] if fits else None


def name_of(salt: bytes, tokens: Tokens) -> str:
    """Return the manifest's name for the state after these tokens. REQUIRES: at least LEAST_TOKENS
    tokens."""
    *_, level = _levels(len(tokens))
    folder, key = ObjectKeys(salt, tokens).of([level, len(tokens)])
    return f"{_FOLDER}/{folder}/{len(tokens)}-{key}"


def _levels(tokens: int) -> Iterator[int]:
    level = LEAST_TOKENS
    while level <= tokens:
        yield level
        level *= 2


def _parsed(name: str) -> tuple[int, str] | None:
    """Return the token count and the hash key in a state's name; None for another name."""
    count, _, key = name.rpartition("/")[2].partition("-")
    is_one = count.isdecimal() and len(count) <= _COUNT_DIGITS and len(key) == _KEY_DIGITS
    return (int(count), key) if is_one else None


log = logging.getLogger(__name__)

Place = TypeVar("Place")

_IN_FLIGHT = 8
_SEGMENT_BYTES = 4 << 20
"""Bytes of a state requested from the store at a time."""
_MARKER = "emptied"


@dataclass(frozen=True)
class _Link:
    """A page's position in its prompt. above: id of the page before it; None for the first page.
    tokens: the page's tokens."""

    above: int | None
    tokens: Tokens


class RemoteObjects:
    def __init__(self, bucket: Bucket, layout: CacheLayout) -> None:
        self._bucket = bucket
        self._layout = layout
        self._threads = IoThreads("tasuki-remote-io", _IN_FLIGHT)
        self._pages: dict[int, tuple[str, int]] = {}
        self._slots: dict[int, str] = {}
        self._links: dict[int, _Link] = {}
        self.flushes = 0
        """Number of flushes of this node's cache, and of changes of its weights. Belongs to the
        engine loop."""
        self._marked = 0
        """Number of this node's flushes recorded in the store."""
        self.counters = dict.fromkeys(("recorded", "found", "torn", "failed"), 0)
        """Counters. recorded: states published for other nodes. found: states of other nodes added
        here. torn: incomplete manifests. failed: writes and lookups failed by the store."""

    @property
    def is_usable(self) -> bool:
        """Return True if states in the store may be used. They may not until the store has recorded
        this node's last flush."""
        return self._marked == self.flushes

    def flushed(self) -> None:
        """Count a flush of this node's cache. The copier's thread records it in the store by
        emptied(). Called on the engine loop."""
        self.flushes += 1

    def turn_to(self, bucket: Bucket) -> None:
        """Use another folder from now on. Lookups begun before it bring nothing. Called on the
        engine loop. REQUIRES: no copy is in progress."""
        self._bucket.turn_to(bucket)
        self.flushes += 1
        self._marked += 1

    def emptied_at(self) -> float | None:
        """Return the time of the last flush of any node, in seconds by the store's clock; None
        before any flush. Objects not younger are invalid. Raises RemoteFailed."""
        return self._bucket.modified(_MARKER)

    def put_pages(self, pages: Sequence[int], rows: Rows) -> None:
        content = np.ascontiguousarray(rows[:, : self._layout.page_bytes])
        name = self._put("kv", content.data.cast("B"))
        self._pages.update((page, (name, at)) for at, page in enumerate(pages))

    def put_slot(self, slot: int, row: Row) -> None:
        self._slots[slot] = self._put("state", row[: self._layout.slot_bytes].data)

    def _put(self, folder: str, content: memoryview) -> str:
        name = f"{folder}/{xxhash.xxh3_128_hexdigest(content)}"
        self._bucket.put(name, content)
        return name

    def get_pages(self, pages: Sequence[int], rows: Rows) -> None:
        by_object: defaultdict[str, list[tuple[int, Row]]] = defaultdict(list)
        for page, row in zip(pages, rows, strict=True):
            name, at = _known(self._pages, page)
            by_object[name].append((at, row))
        self._threads.run(
            [partial(self._get_pages, name, parts) for name, parts in by_object.items()]
        )

    def _get_pages(self, name: str, parts: list[tuple[int, Row]]) -> None:
        size = self._layout.page_bytes
        found = self._bucket.ranges(name, [at * size for at, _ in parts], [size] * len(parts))
        for (_, row), content in zip(parts, found, strict=True):
            row[:size] = np.frombuffer(content, np.uint8)

    def get_slot(self, slot: int, row: Row) -> None:
        name, size = _known(self._slots, slot), self._layout.slot_bytes

        def get(start: int) -> None:
            length = min(_SEGMENT_BYTES, size - start)
            (found,) = self._bucket.ranges(name, [start], [length])
            row[start : start + length] = np.frombuffer(found, np.uint8)

        self._threads.run([partial(get, start) for start in range(0, size, _SEGMENT_BYTES)])

    def taken(self, job: CopyJob) -> None:
        """Forget the old contents of the write's target pages and slot."""
        for _, page in job.pages:
            self._pages.pop(page, None)
            self._links.pop(page, None)
        if job.slot is not None:
            self._slots.pop(job.slot[1], None)

    def kept(self, job: CopyJob, written: TierDigests) -> None:
        """Publish the state's manifest for other nodes. Leave it out if the state is short or its
        path is unknown. A state of other weights has no label, and is left out too."""
        label, slot = job.label, job.slot
        if label is None:
            return
        assert slot is not None
        targets = [target for _, target in job.pages]
        self._link(targets, label.above, label.tokens)
        path = self._path_to(label.above)
        if len(path) * PAGE_TOKENS != label.start:
            # A part of the path was written before this node was emptied, so it is not known.
            return
        before = [self._links[page].tokens for page in path]
        tokens = np.concatenate([*before, label.tokens]).astype("<i4")
        if len(tokens) < LEAST_TOKENS:
            return
        pages = [*path, *targets]
        manifest = Manifest(
            label.salt,
            tokens.tobytes(),
            label.kind,
            runs_of(self._pages[page] for page in pages),
            digest_bytes(written.pages[page] for page in pages),
            self._slots[slot[1]],
            digest_bytes([written.slots[slot[1]]]),
        )
        try:
            self._bucket.put(name_of(label.salt, tokens), encoded(manifest))
        except RemoteFailed as error:
            self.failed(error)
        else:
            self.counters["recorded"] += 1

    def emptied(self) -> None:
        """Invalidate all earlier writes in the store, for every node with this contract."""
        flushes = self.flushes
        self._links.clear()
        try:
            self._bucket.put(_MARKER, b"emptied")
        except RemoteFailed as error:
            log.error(
                "the remote store did not take that the cache was emptied: nothing is asked of it "
                "until it takes another flush or this node starts again, and other nodes may use "
                "what was there: %s",
                error,
            )
        else:
            self._marked = flushes

    def adopted(self, manifest: Manifest, pages: Sequence[int], first: int, slot: int) -> None:
        """Record the page and slot ids given by the prefix tree to the manifest's state. first:
        number of the prompt's first pages already stored before."""
        places = manifest.places
        self._pages.update(zip(pages[first:], places[first:], strict=True))
        self._slots[slot] = manifest.slot
        above = pages[first - 1] if first else None
        self._link(pages[first:], above, manifest.prompt[first * PAGE_TOKENS :])
        self.counters["found"] += 1

    def _link(self, pages: Sequence[int], above: int | None, tokens: Tokens) -> None:
        for number, page in enumerate(pages):
            part = tokens[number * PAGE_TOKENS : (number + 1) * PAGE_TOKENS]
            self._links[page] = _Link(above, np.array(part, np.int32))
            above = page

    def _path_to(self, page: int | None) -> list[int]:
        """Return the pages before this page and the page itself, in the order of the prompt. Pages
        before the first unknown one are missing."""
        found: list[int] = []
        while page is not None and page in self._links:
            found.append(page)
            page = self._links[page].above
        return found[::-1]

    def failed(self, error: Exception) -> None:
        if self.counters["failed"] == 0:
            log.error("the remote store fails; those that follow are counted: %s", error)
        self.counters["failed"] += 1

    def close(self) -> None:
        """End the threads for requests. Idempotent. REQUIRES: none reads or writes any more."""
        self._threads.close()


def _known(places: Mapping[int, Place], number: int) -> Place:
    try:
        return places[number]
    except KeyError:
        raise RemoteFailed(f"no object is known to have {number}") from None
