"""The pages and slots of a remote tier: which object has which, and what others can find of them.

An object's name is the digest of its bytes, so that nobody overwrites one with another, and the
same bytes are written once by however many. Pages that were written together are one object. Its
journal writes the manifest of a state once all it names is there. Nothing is deleted here: others
may read it; let the bucket expire what is old.

Thread rule: as `TierStore` and `WriteJournal`; adopted() is the engine loop's, of ids that nobody
has yet.
"""

import logging
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import numpy as np
import xxhash

from tasuki.engine.tiers.copy_job import CopyJob
from tasuki.engine.tiers.digests import TierDigests
from tasuki.engine.tiers.store import IoThreads, Row, Rows
from tasuki.pycache.layout import PAGE_TOKENS, CacheLayout

from .bucket import Bucket, RemoteFailed
from .manifest import LEAST_TOKENS, Manifest, Tokens, digest_bytes, encoded, name_of, runs_of

log = logging.getLogger(__name__)

Place = TypeVar("Place")

_IN_FLIGHT = 8
_PIECE_BYTES = 4 << 20
"""Of a state that is read at a time."""
_MARKER = "emptied"


@dataclass(frozen=True)
class _Link:
    """Of a page: the one before it on its path, and its tokens."""

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
        """How often this node's cache was flushed; the engine loop's."""
        self._marked = 0
        """Of them, those that the store has noted."""
        self.counters = dict.fromkeys(("recorded", "found", "torn", "failed"), 0)
        """States that others may find; that were found; manifests that were not whole; appends and
        lookups that the store did not take."""

    @property
    def is_usable(self) -> bool:
        """Whether others' states are: not while the store has not noted that all were dropped."""
        return self._marked == self.flushes

    def flushed(self) -> None:
        """The cache was; the copier's thread notes it (emptied). The engine loop's."""
        self.flushes += 1

    def emptied_at(self) -> float | None:
        """By the store's clock: what is as old, or older, is of no use, whoever emptied it. Raises
        RemoteFailed."""
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
            length = min(_PIECE_BYTES, size - start)
            (found,) = self._bucket.ranges(name, [start], [length])
            row[start : start + length] = np.frombuffer(found, np.uint8)

        self._threads.run([partial(get, start) for start in range(0, size, _PIECE_BYTES)])

    def taken(self, job: CopyJob) -> None:
        """What stood at the job's targets goes."""
        for _, page in job.pages:
            self._pages.pop(page, None)
            self._links.pop(page, None)
        if job.slot is not None:
            self._slots.pop(job.slot[1], None)

    def kept(self, job: CopyJob, written: TierDigests) -> None:
        """Let others find it. REQUIRES: it has a label."""
        label, slot = job.label, job.slot
        assert label is not None and slot is not None
        targets = [target for _, target in job.pages]
        self._link(targets, label.above, label.tokens)
        path = self._path_to(label.above)
        if len(path) * PAGE_TOKENS != label.start:
            # A part of it is not known: it came before this node was emptied.
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
        """What was written before is of no use, to no node of this contract."""
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
        """The tree gave the manifest's state these ids; the pages before `first` it had already."""
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
        """From the first page on; as far as it is known."""
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
        """Idempotent. REQUIRES: nobody reads or writes any more."""
        self._threads.close()


def _known(places: Mapping[int, Place], number: int) -> Place:
    try:
        return places[number]
    except KeyError:
        raise RemoteFailed(f"no object is known to have {number}") from None
