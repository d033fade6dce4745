"""Copies between an arena and a tier, piece by piece, with digests of what they move.

Thread rule: one thread; a load may go on while a write is under way.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

import xxhash

from tasuki.pycache.arena import Arena, PagePairs, copy_pages_across, copy_slot_across

from .copy_job import CopyJob, Piece, layer_pieces, run_moves
from .digests import ArenaDigests, page_bytes


class StillMoving(Exception):
    """Whether a copy still moves bytes cannot be known: its ids are in use for good."""


class RunningCopy(Protocol):
    """Thread rule: one thread."""

    @property
    def layers(self) -> int:
        """So many layers have in the arena all that a load brings of them."""

    def advance(self) -> bool:
        """Begin another piece, and wait for one where enough are under way; False, and nothing is
        under way, once all are there. Holds no interpreter's lock while bytes move."""

    def digests(self) -> tuple[list[int], int | None]:
        """Of the job's pages and of its slot, as the arena has them. REQUIRES: advance() was
        False."""

    def settle(self) -> None:
        """Nothing that was begun moves a byte any more, however it went. Raises StillMoving."""


class WholeCopy:
    """A copy while it goes on, piece by piece, as the thread that copies sees it.

    `RunningCopy` of whole pages, then of a whole slot: no layer is there before all are.
    """

    layers = 0

    def __init__(
        self,
        job: CopyJob,
        at_once: int,
        move_pages: Callable[[PagePairs], list[int]],
        move_slot: Callable[[tuple[int, int]], int],
    ) -> None:
        """at_once: pages of a piece. move_pages, move_slot: have ended on return, with digests of
        what the arena has of them."""
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
        """Each piece has ended when its call returns."""


def _parts(pages: Sequence[tuple[int, int]], at_once: int) -> Iterator[PagePairs]:
    for first in range(0, len(pages), at_once):
        yield pages[first : first + at_once]


PIECE_BYTES = 8 << 20
"""Of what is copied before anybody looks whether it is still wanted: a few milliseconds."""


class PieceCopies(Protocol):
    """Copies between an arena and a tier, with digests of what they move: all that depends on where
    the arena is and on what is below it.

    Down to a tier from what is above it, up from the tier to the arena. Thread rule: one thread; a
    load may go on while a write is under way.
    """

    def down(self, job: CopyJob) -> RunningCopy:
        """A write, of which nothing has begun; its digests are of what the arena had."""

    def up(self, job: CopyJob) -> RunningCopy:
        """A load, of which nothing has begun."""


class HostCopies:
    """`PieceCopies` of host memory below an arena that is in host memory as well."""

    def __init__(self, arena: Arena, below: Arena, piece_bytes: int = PIECE_BYTES) -> None:
        """piece_bytes: of what is copied before anybody looks whether it is still wanted."""
        self._arena = arena
        self._below = below
        self._piece_bytes = piece_bytes
        self._digests = ArenaDigests(arena)

    def down(self, job: CopyJob) -> WholeCopy:
        at_once = max(1, self._piece_bytes // self._arena.layout.page_bytes)
        return WholeCopy(job, at_once, self.pages_down, self.slot_down)

    def pages_down(self, pages: PagePairs) -> list[int]:
        # First: a copy that went wrong is then not what its digest says.
        digests = self._digests.of_pages([page for page, _ in pages])
        copy_pages_across(self._arena, self._below, pages)
        return digests

    def slot_down(self, slot: tuple[int, int]) -> int:
        digest = self._digests.of_slot(slot[0])
        copy_slot_across(self._arena, self._below, slot)
        return digest

    def up(self, job: CopyJob) -> "HostUpCopy":
        pieces = layer_pieces(self._arena.layout, job, self._piece_bytes)
        return HostUpCopy(self, self._arena, job, pieces)

    def move_up(self, piece: Piece) -> None:
        run_moves(self._below.bytes, self._arena.bytes, piece.moves)


class HostUpCopy:
    """`RunningCopy` from host memory. Each piece is digested as soon as it has landed, while it is
    in the processor's caches."""

    def __init__(
        self, copies: HostCopies, arena: Arena, job: CopyJob, pieces: Iterator[Piece]
    ) -> None:
        self._copies = copies
        self._arena = arena
        self._job = job
        self._pieces = pieces
        self._of_pages = [xxhash.xxh3_128() for _ in job.pages]
        self._of_slot = xxhash.xxh3_128()
        self.layers = 0

    def advance(self) -> bool:
        piece = next(self._pieces, None)
        if piece is None:
            return False
        self._copies.move_up(piece)
        self._digest(piece)
        self.layers = piece.layers
        return True

    def _digest(self, piece: Piece) -> None:
        if piece.region is None:
            for _, first, length in piece.moves.T.tolist():
                landed = self._arena.bytes[first : first + length]
                self._of_slot.update(landed.numpy().data)
            return
        for number in range(*piece.pages):
            block = page_bytes(self._arena, self._job.pages[number][1])[piece.region]
            self._of_pages[number].update(block.data)

    def digests(self) -> tuple[list[int], int | None]:
        pages = [total.intdigest() for total in self._of_pages]
        return pages, None if self._job.slot is None else self._of_slot.intdigest()

    def settle(self) -> None:
        """Each piece has ended when its call returns."""
