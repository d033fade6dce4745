"""Copies of a few pages or of a slot, with digests of what they move: all that depends on where the
arena is.

A digest is of the bytes and not of their place (transfer/windows/digest.py), so that what the arena
had and what came back from below are equal exactly if their digests are.
"""

from collections.abc import Sequence
from typing import Protocol

from tasuki.pycache.arena import Arena
from tasuki.pycache.place_copies import PagePairs, copy_pages_across, copy_slot_across
from tasuki.transfer.windows.digest import ArenaWindow, Digester
from tasuki.transfer.windows.window import WindowHeader


class PieceCopies(Protocol):
    """Between an arena and the memory below it. Thread rule: one thread. All have ended on
    return, and hold no interpreter's lock while bytes move."""

    def pages_down(self, pages: PagePairs) -> list[int]:
        """The digest of each as the arena had it."""

    def pages_up(self, pages: PagePairs) -> list[int]:
        """The digest of each as the arena has it now."""

    def slot_down(self, slot: tuple[int, int]) -> int: ...

    def slot_up(self, slot: tuple[int, int]) -> int: ...


class HostCopies:
    """`PieceCopies` of an arena that is in host memory as well."""

    def __init__(self, arena: Arena, below: Arena, digester: Digester) -> None:
        """digester: of the arena."""
        self._arena = arena
        self._below = below
        self._digester = digester
        self._layers = len(arena.layout.layer_kinds)

    def pages_down(self, pages: PagePairs) -> list[int]:
        # First: a copy that went wrong is then not what its digest says.
        digests = self._of_pages([page for page, _ in pages])
        copy_pages_across(self._arena, self._below, pages)
        return digests

    def pages_up(self, pages: PagePairs) -> list[int]:
        copy_pages_across(self._below, self._arena, pages)
        return self._of_pages([page for _, page in pages])

    def slot_down(self, slot: tuple[int, int]) -> int:
        digest = self._of_slot(slot[0])
        copy_slot_across(self._arena, self._below, slot)
        return digest

    def slot_up(self, slot: tuple[int, int]) -> int:
        copy_slot_across(self._below, self._arena, slot)
        return self._of_slot(slot[1])

    def _of_pages(self, pages: Sequence[int]) -> list[int]:
        header = WindowHeader(0, 0, self._layers, 0, 1, carries_state=False)
        return self._digester.digest_all(
            [ArenaWindow(0, 0, header, (page,), None) for page in pages]
        )

    def _of_slot(self, slot: int) -> int:
        header = WindowHeader(0, 0, self._layers, 0, 0, carries_state=True)
        return self._digester.digest_all([ArenaWindow(0, 0, header, (), slot)])[0]
