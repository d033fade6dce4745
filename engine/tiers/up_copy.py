"""A load while it goes on, piece by piece, as the thread that copies sees it."""

from collections.abc import Iterator, Sequence
from typing import Protocol

from tasuki.pycache.place_copies import PagePairs

from .copy_job import CopyJob


class StillMoving(Exception):
    """Whether a copy still moves bytes cannot be known: its ids are in use for good."""


class UpCopy(Protocol):
    """Thread rule: one thread."""

    @property
    def layers(self) -> int:
        """So many layers have in the arena all that the load brings of them."""

    def advance(self) -> bool:
        """Begin another piece, and wait for one where enough are under way; False, and nothing is
        under way, once all are there. Holds no interpreter's lock while bytes move."""

    def digests(self) -> tuple[list[int], int | None]:
        """Of the job's pages and of its slot, as the arena has them. REQUIRES: advance() was
        False."""

    def settle(self) -> None:
        """Nothing that was begun moves a byte any more, however the load went. Raises
        StillMoving."""


class WholePages(Protocol):
    """Up from a tier that has pages in one piece."""

    def pages_up(self, pages: PagePairs) -> list[int]:
        """The digest of each as the arena has it now."""

    def slot_up(self, slot: tuple[int, int]) -> int: ...


class WholeCopy:
    """`UpCopy` of a tier that has pages in one piece: no layer is there before all are."""

    layers = 0

    def __init__(self, pieces: WholePages, job: CopyJob, at_once: int) -> None:
        """at_once: pages of a piece."""
        self._pieces = pieces
        self._job = job
        self._left = _parts(job.pages, at_once)
        self._pages: list[int] = []
        self._slot: int | None = None
        self._slot_left = job.slot

    def advance(self) -> bool:
        pages = next(self._left, None)
        if pages is not None:
            self._pages += self._pieces.pages_up(pages)
            return True
        if self._slot_left is None:
            return False
        slot, self._slot_left = self._slot_left, None
        self._slot = self._pieces.slot_up(slot)
        return True

    def digests(self) -> tuple[list[int], int | None]:
        return self._pages, self._slot

    def settle(self) -> None:
        """Each piece has ended when its call returns."""


def _parts(pages: Sequence[tuple[int, int]], at_once: int) -> Iterator[PagePairs]:
    for first in range(0, len(pages), at_once):
        yield pages[first : first + at_once]
