"""Source of a sender's layer chunks, and the thread for their digests.

Thread rule: sizes and windows() from any thread, the rest on the transfer thread. Digests have a
thread of their own.
"""

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Protocol

from tasuki.pycache._cpp_cache import WindowGeometry
from tasuki.pycache.layout import CacheLayout
from tasuki.transfer.chunks.chunk import (
    Destination,
    FinishedLayers,
    LayerChunk,
    Run,
    cut,
    granted_pages,
)
from tasuki.transfer.chunks.descriptors import Segments, UnitSizes
from tasuki.transfer.chunks.digest import ArenaChunk, Digester, Digestible, chunk_geometry
from tasuki.transfer.ranks.ranked_source import RankedSource
from tasuki.transfer.ranks.region import RankSpans
from tasuki.utils.signatures import Notice
from tasuki.utils.system import name_this_thread


class LoadedChunk(Protocol):
    """Layer chunk loaded by a source, ready to be posted."""

    def segments(self, destination: Destination) -> Segments:
        """Return the segments of the chunk's bytes: places in this arena and at the destination."""

    def digestible(self, transfer_id: int, generation: int) -> Digestible:
        """Return the posted bytes in the form taken by the source's digester."""

    def release(self) -> None:
        """Release the chunk, exactly once. Call it when the chunk is no longer in flight, or its
        transfer's end was forced."""


class ChunkSource(Protocol):
    """Source of a sender's layer chunks: the pages and the slot themselves (this module), or an
    encoded copy of them (encoding_source.py).

    Thread rule: windows() and sizes from any thread, the rest on the transfer thread; a loaded
    chunk's digestible() on any one. Invariant: a loaded chunk's bytes stay unchanged until
    release().
    """

    @property
    def sizes(self) -> UnitSizes:
        """Return the bytes sent for a block and for a state of each layer."""

    @property
    def code(self) -> int:
        """Return the number naming the wire's precision in the notification of a chunk."""

    @property
    def digester(self) -> Digester:
        """Return the digester of the arena with the sent bytes."""

    @property
    def in_place(self) -> bool:
        """Return True if chunks are sent from their place in the arena and digested as ArenaChunk.
        They may then be loaded before their layers are finished."""

    @property
    def most_together(self) -> int:
        """Return the number of chunks to load before they are posted together."""

    def toward(self, theirs: RankSpans, slabs: int) -> "ChunkSource":
        """Return the source for sending to the peer's arenas. theirs: places of the peer's arenas.
        slabs: size of this node's arena. Raises ValueError if this source cannot send to them."""

    def windows(
        self, plan: FinishedLayers, runs: Sequence[Run], first_sequence: int
    ) -> list[LayerChunk]:
        """Return the chunks of a forward. runs: first and end layer of each chunk; a source may
        split them. first_sequence: number of the first chunk. Each chunk can be loaded in one
        go."""

    def has_room(self, peer: str) -> bool:
        """Return True if a chunk for `peer` may be loaded now. False: a loaded chunk has to be
        released first."""

    def load(self, peer: str, chunk: LayerChunk) -> LoadedChunk:
        """Load a chunk to be posted to the peer. REQUIRES: has_room(peer)."""


class DirectSource:
    """Source without copies: bytes are sent from their place; loading a chunk never waits."""

    code = 0
    in_place = True
    most_together = 64

    def __init__(self, layout: CacheLayout, digester: Digester) -> None:
        """digester: digester of whole (not encoded) blocks and states of this arena."""
        self.digester = digester
        self._layout = layout
        self._geometry = chunk_geometry(layout)

    @property
    def sizes(self) -> UnitSizes:
        return self._layout

    def toward(self, theirs: RankSpans, slabs: int) -> ChunkSource:
        if theirs.ranks == 1:
            return self
        return RankedSource(RankSpans(self._layout, 1, slabs), theirs, self.digester)

    def windows(
        self, plan: FinishedLayers, runs: Sequence[Run], first_sequence: int
    ) -> list[LayerChunk]:
        return cut(plan, runs, first_sequence)

    def has_room(self, peer: str) -> bool:
        return True

    def load(self, peer: str, chunk: LayerChunk) -> "_ChunkInPlace":
        return _ChunkInPlace(self._geometry, chunk)


class _ChunkInPlace:
    def __init__(self, geometry: WindowGeometry, chunk: LayerChunk) -> None:
        self._geometry = geometry
        self._chunk = chunk

    def segments(self, destination: Destination) -> Segments:
        """Return the chunk's segments, equal to those of the reference,
        tests/harness/segments_twin.py."""
        chunk, header = self._chunk, self._chunk.header
        here, there = chunk.local_slot, destination.slot
        return self._geometry.pieces(
            header.first_layer,
            header.end_layer,
            (chunk.local_pages, granted_pages(destination, header)),
            None if here is None or there is None else (here, there),
        )

    def digestible(self, transfer_id: int, generation: int) -> ArenaChunk:
        chunk = self._chunk
        return ArenaChunk(
            transfer_id, generation, chunk.header, chunk.local_pages, chunk.local_slot
        )

    def release(self) -> None:
        """Do nothing: the pages and the slot belong to the engine."""


_MOST_AT_ONCE = 64
"""Most chunks digested in one call: the first of them waits for the last."""


@dataclass(eq=False)
class AskedDigest:
    """Digest of a layer chunk, computed on the digests' thread. answer: the digest or an error;
    None until it is computed."""

    digester: Digester
    loaded: LoadedChunk
    transfer_id: int
    generation: int
    answer: int | Exception | None = None

    @property
    def done(self) -> bool:
        return self.answer is not None

    def result(self) -> int:
        """Return the digest. Raises the digester's error. REQUIRES: `done` is True."""
        assert self.answer is not None
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


class DigestThread:
    """Thread for digests of sent chunks, in parallel with their transfers: all waiting chunks in
    one call.

    Owns a thread and its queue of chunks. Knows no transfers and no links. Thread rule: start() and
    stop() once each, ask() from one thread. `changed` is called on the digests' thread and must not
    wait. Invariants: every queued chunk gets a digest or an error, even at stop(). An error of one
    chunk affects no other.
    """

    def __init__(self, changed: Notice) -> None:
        """changed: called when the digests of some queued chunks are computed."""
        self._changed = changed
        self._asked: SimpleQueue[Sequence[AskedDigest] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._loop, name="tasuki-digests", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread; blocks until all queued digests are computed. REQUIRES: start was
        called; ask() is not called after it."""
        self._asked.put(None)
        self._thread.join()

    def ask(self, asked: Sequence[AskedDigest]) -> None:
        """Queue chunks for digests. Their bytes must stay unchanged until the digests are done."""
        self._asked.put(asked)

    def _loop(self) -> None:
        name_this_thread()
        while (first := self._asked.get()) is not None:
            batch = [*first]
            over = False
            while not over and len(batch) < _MOST_AT_ONCE:
                try:
                    more = self._asked.get_nowait()
                except Empty:
                    break
                over = more is None
                if more is not None:
                    batch += more
            _answer_all(batch)
            self._changed()
            if over:
                return


def _answer_all(batch: Sequence[AskedDigest]) -> None:
    for digester in {id(asked.digester): asked.digester for asked in batch}.values():
        of_it = [asked for asked in batch if asked.digester is digester]
        try:
            found = digester.digest_each(
                [asked.loaded.digestible(asked.transfer_id, asked.generation) for asked in of_it]
            )
        except Exception:
            for asked in of_it:
                _answer(asked)
        else:
            for asked, digest in zip(of_it, found, strict=True):
                asked.answer = digest


def _answer(asked: AskedDigest) -> None:
    """Digest one chunk by itself, so its error affects no other."""
    try:
        loaded = asked.loaded.digestible(asked.transfer_id, asked.generation)
        (asked.answer,) = asked.digester.digest_each([loaded])
    except Exception as error:
        asked.answer = error
