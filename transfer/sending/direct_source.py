"""From where in the arena a sender's windows leave: the pages and the slot themselves, as here, or
an encoded copy (encoding_source.py).

Thread rule: windows() and sizes from any thread, the rest on the transfer thread; a loaded window's
digest() on any one.
Invariant: a loaded window's bytes stay as they are until release().
"""

from collections.abc import Sequence
from typing import Protocol

from tasuki.pycache.layout import CacheLayout
from tasuki.transfer.windows.descriptors import Pieces, window_pieces
from tasuki.transfer.windows.destination import Destination, granted_pages
from tasuki.transfer.windows.digest import Digester
from tasuki.transfer.windows.unit_sizes import UnitSizes
from tasuki.transfer.windows.window import FinishedLayers, Run, Window, cut


class LoadedWindow(Protocol):
    """One window, ready to be posted."""

    def pieces(self, destination: Destination) -> Pieces:
        """Where its bytes are here, and go there."""

    def digest(self, room: int, generation: int) -> int:
        """Of the bytes that are posted."""

    def release(self) -> None:
        """Exactly once: nothing of it is in flight, or the room's end was forced."""


class WindowSource(Protocol):
    @property
    def sizes(self) -> UnitSizes:
        """Of what is posted."""

    @property
    def code(self) -> int:
        """Of the precision, as notifications carry it."""

    def windows(
        self, plan: FinishedLayers, runs: Sequence[Run], first_sequence: int
    ) -> list[Window]:
        """Of a forward that is to leave in those runs of layers; each can be loaded at once."""

    def has_room(self, peer: str) -> bool:
        """Whether a window for that peer may be loaded now; if not, one will be released."""

    def load(self, peer: str, window: Window) -> LoadedWindow:
        """REQUIRES: has_room(peer)."""


class DirectSource:
    """Bytes leave from where they lie: nothing is copied and nothing is waited for."""

    code = 0

    def __init__(self, layout: CacheLayout, digester: Digester) -> None:
        self._layout = layout
        self._digester = digester

    @property
    def sizes(self) -> UnitSizes:
        return self._layout

    def windows(
        self, plan: FinishedLayers, runs: Sequence[Run], first_sequence: int
    ) -> list[Window]:
        return cut(plan, runs, first_sequence)

    def has_room(self, peer: str) -> bool:
        return True

    def load(self, peer: str, window: Window) -> "_WindowInPlace":
        return _WindowInPlace(self._layout, self._digester, window)


class _WindowInPlace:
    def __init__(self, layout: CacheLayout, digester: Digester, window: Window) -> None:
        self._layout = layout
        self._digester = digester
        self._window = window

    def pieces(self, destination: Destination) -> Pieces:
        window = self._window
        return window_pieces(
            self._layout,
            window.header,
            window.local_pages,
            granted_pages(destination, window.header),
            window.local_slot,
            destination.slot,
        )

    def digest(self, room: int, generation: int) -> int:
        window = self._window
        return self._digester.digest(
            room, generation, window.header, window.local_pages, window.local_slot
        )

    def release(self) -> None:
        """Pages and slot are the engine's."""
