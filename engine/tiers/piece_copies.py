"""Copies of a few pages or of a slot, with digests of what they move: all that depends on where the
arena is and on what is below it."""

from typing import Protocol

from tasuki.pycache.arena import Arena
from tasuki.pycache.place_copies import PagePairs, copy_pages_across, copy_slot_across

from .digests import ArenaDigests


class PieceCopies(Protocol):
    """Down to a tier from what is above it, up from the tier to the arena. Thread rule: one thread.
    All have ended on return, and hold no interpreter's lock while bytes move."""

    def pages_down(self, pages: PagePairs) -> list[int]:
        """The digest of each as the arena had it."""

    def pages_up(self, pages: PagePairs) -> list[int]:
        """The digest of each as the arena has it now."""

    def slot_down(self, slot: tuple[int, int]) -> int: ...

    def slot_up(self, slot: tuple[int, int]) -> int: ...


class HostCopies:
    """`PieceCopies` of host memory below an arena that is in host memory as well."""

    def __init__(self, arena: Arena, below: Arena) -> None:
        self._arena = arena
        self._below = below
        self._digests = ArenaDigests(arena)

    def pages_down(self, pages: PagePairs) -> list[int]:
        # First: a copy that went wrong is then not what its digest says.
        digests = self._digests.of_pages([page for page, _ in pages])
        copy_pages_across(self._arena, self._below, pages)
        return digests

    def pages_up(self, pages: PagePairs) -> list[int]:
        copy_pages_across(self._below, self._arena, pages)
        return self._digests.of_pages([page for _, page in pages])

    def slot_down(self, slot: tuple[int, int]) -> int:
        digest = self._digests.of_slot(slot[0])
        copy_slot_across(self._arena, self._below, slot)
        return digest

    def slot_up(self, slot: tuple[int, int]) -> int:
        copy_slot_across(self._below, self._arena, slot)
        return self._digests.of_slot(slot[1])
