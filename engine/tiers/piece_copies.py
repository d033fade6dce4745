"""Copies of a few pages or of a slot, with digests of what they move: all that depends on where the
arena is and on what is below it."""

from typing import Protocol

import xxhash

from tasuki.pycache.arena import Arena
from tasuki.pycache.place_copies import PagePairs, copy_pages_across, copy_slot_across

from .copy_job import CopyJob
from .digests import ArenaDigests
from .layer_pieces import Piece, layer_pieces, run_moves
from .pieces import page_bytes
from .up_copy import UpCopy

PIECE_BYTES = 8 << 20
"""Of what is copied before anybody looks whether it is still wanted: a few milliseconds."""


class PieceCopies(Protocol):
    """Down to a tier from what is above it, up from the tier to the arena. Thread rule: one thread.
    Those down have ended on return, and hold no interpreter's lock while bytes move."""

    piece_bytes: int
    """Of what is copied before anybody looks whether it is still wanted."""

    def pages_down(self, pages: PagePairs) -> list[int]:
        """The digest of each as the arena had it."""

    def slot_down(self, slot: tuple[int, int]) -> int: ...

    def up(self, job: CopyJob) -> UpCopy:
        """A load, of which nothing has begun."""


class HostCopies:
    """`PieceCopies` of host memory below an arena that is in host memory as well."""

    piece_bytes = PIECE_BYTES

    def __init__(self, arena: Arena, below: Arena) -> None:
        self._arena = arena
        self._below = below
        self._digests = ArenaDigests(arena)

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
        return HostUpCopy(self, self._arena, job)

    def move_up(self, piece: Piece) -> None:
        run_moves(self._below.bytes, self._arena.bytes, piece.moves)


class HostUpCopy:
    """`UpCopy` from host memory. Each piece is digested as soon as it has landed, while it is in
    the processor's caches."""

    def __init__(self, copies: HostCopies, arena: Arena, job: CopyJob) -> None:
        self._copies = copies
        self._arena = arena
        self._job = job
        self._pieces = layer_pieces(arena.layout, job, copies.piece_bytes)
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
