"""Copies between an arena and a tier, segment by segment, with digests of the copied bytes."""

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

import xxhash

from tasuki.pycache.arena import Arena, PagePairs, copy_pages_across, copy_slot_across

from .copy_job import CopyJob, Segment, layer_segments, run_moves
from .digests import ArenaDigests, page_bytes


class StillMoving(Exception):
    """The end of a copy cannot be observed, so bytes may still move. Its pages and slots stay in
    use for good."""


class RunningCopy(Protocol):
    """A copy in progress between an arena and a tier. Thread rule: one thread."""

    @property
    def layers(self) -> int:
        """Return the number of first layers with all loaded data in the arena."""

    def advance(self) -> bool:
        """Begin another segment, or wait for one if enough are in flight. Return False once all are
        complete and none is in flight. The interpreter lock is free while bytes move."""

    def digests(self) -> tuple[list[int], int | None]:
        """Return the digests of the job's pages and of its slot (None without a slot), from the
        arena's bytes. REQUIRES: advance() returned False."""

    def settle(self) -> None:
        """Wait until no begun segment moves a byte any more, after success or failure. Raises
        StillMoving if this cannot be waited for."""


class WholeCopy:
    """A `RunningCopy` of whole pages, segment by segment, then of a whole slot. No layer is
    complete before all are."""

    layers = 0

    def __init__(
        self,
        job: CopyJob,
        at_once: int,
        move_pages: Callable[[PagePairs], list[int]],
        move_slot: Callable[[tuple[int, int]], int],
    ) -> None:
        """at_once: number of pages in a segment. move_pages, move_slot: copy (source, target)
        pairs; they return after the copy, with digests of the arena's bytes."""
        self._left = _parts(job.pages, at_once)
        self._move_pages = move_pages
        self._move_slot = move_slot
        self._pages: list[int] = []
        self._slot: int | None = None
        self._slot_left = job.slot

    def advance(self) -> bool:
        pages = next(self._left, None)
        if pages is not None:
            self._pages += self._move_pages(pages)
            return True
        if self._slot_left is None:
            return False
        slot, self._slot_left = self._slot_left, None
        self._slot = self._move_slot(slot)
        return True

    def digests(self) -> tuple[list[int], int | None]:
        return self._pages, self._slot

    def settle(self) -> None:
        """Do nothing: each segment's copy has ended when advance() returns."""


def _parts(pages: Sequence[tuple[int, int]], at_once: int) -> Iterator[PagePairs]:
    for first in range(0, len(pages), at_once):
        yield pages[first : first + at_once]


SEGMENT_BYTES = 8 << 20
"""Bytes of a segment on the host: copied between two checks for a cancellation, in a few
milliseconds."""


class SegmentCopies(Protocol):
    """Copies between an arena and a tier, with digests of the copied bytes. Contains all code
    depending on both the arena's memory and the tier's.

    Down: to a tier from the tier above it, or from the arena. Up: from the tier to the arena.
    Thread rule: one thread; a load may go on while a write is in progress.
    """

    def down(self, job: CopyJob) -> RunningCopy:
        """Return the copy of a write to the tier, not begun yet. Its digests cover the bytes once
        read from the arena."""

    def up(self, job: CopyJob) -> RunningCopy:
        """Return the copy of a load to the arena, not begun yet."""


class HostCopies:
    """The `SegmentCopies` for an arena in host memory and a host tier."""

    def __init__(self, arena: Arena, below: Arena) -> None:
        self._arena = arena
        self._below = below
        self._digests = ArenaDigests(arena)

    def down(self, job: CopyJob) -> WholeCopy:
        at_once = max(1, SEGMENT_BYTES // self._arena.layout.page_bytes)
        return WholeCopy(job, at_once, self.pages_down, self.slot_down)

    def pages_down(self, pages: PagePairs) -> list[int]:
        # Compute the digests first: a failed copy then differs from its digest.
        digests = self._digests.of_pages([page for page, _ in pages])
        copy_pages_across(self._arena, self._below, pages)
        return digests

    def slot_down(self, slot: tuple[int, int]) -> int:
        digest = self._digests.of_slot(slot[0])
        copy_slot_across(self._arena, self._below, slot)
        return digest

    def up(self, job: CopyJob) -> "HostUpCopy":
        segments = layer_segments(self._arena.layout, job, SEGMENT_BYTES)
        return HostUpCopy(self, self._arena, job, segments)

    def move_up(self, segment: Segment) -> None:
        run_moves(self._below.bytes, self._arena.bytes, segment.moves)


class HostUpCopy:
    """The `RunningCopy` of a load from the host tier to an arena in host memory. Each segment is
    digested right after its copy, while it is in the processor's caches."""

    def __init__(
        self, copies: HostCopies, arena: Arena, job: CopyJob, segments: Iterator[Segment]
    ) -> None:
        self._copies = copies
        self._arena = arena
        self._job = job
        self._segments = segments
        self._of_pages = [xxhash.xxh3_128() for _ in job.pages]
        self._of_slot = xxhash.xxh3_128()
        self.layers = 0

    def advance(self) -> bool:
        segment = next(self._segments, None)
        if segment is None:
            return False
        self._copies.move_up(segment)
        self._digest(segment)
        self.layers = segment.layers
        return True

    def _digest(self, segment: Segment) -> None:
        if segment.region is None:
            for _, first, length in segment.moves.T.tolist():
                arrived = self._arena.bytes[first : first + length]
                self._of_slot.update(arrived.numpy().data)
            return
        for number in range(*segment.pages):
            block = page_bytes(self._arena, self._job.pages[number][1])[segment.region]
            self._of_pages[number].update(block.data)

    def digests(self) -> tuple[list[int], int | None]:
        pages = [total.intdigest() for total in self._of_pages]
        return pages, None if self._job.slot is None else self._of_slot.intdigest()

    def settle(self) -> None:
        """Do nothing: each segment's copy has ended when advance() returns."""
