"""A copy while it goes on, piece by piece, as the thread that copies sees it."""

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

from tasuki.pycache.place_copies import PagePairs

from .copy_job import CopyJob


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
    """`RunningCopy` of whole pages, then of a whole slot: no layer is there before all are."""

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
