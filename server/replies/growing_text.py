"""A text that grows by pieces as short as a token, in little more memory than its letters take.

A list of its pieces would take some 60 bytes for each. One text, one thread.
"""

import sys

_JOINED_AT_ONCE = 64
"""Pieces; a joined part then adds some two bytes to each."""


class GrowingText:
    def __init__(self) -> None:
        self._joined: list[str] = []
        self._pieces: list[str] = []
        self.kept_bytes = 0
        """Memory of the pieces that were joined."""

    def add(self, piece: str) -> None:
        """Put a piece behind the text."""
        self._pieces.append(piece)
        if len(self._pieces) >= _JOINED_AT_ONCE:
            joined = "".join(self._pieces)
            self._joined.append(joined)
            self.kept_bytes += sys.getsizeof(joined)
            self._pieces.clear()

    def __str__(self) -> str:
        """Return the whole text."""
        return "".join((*self._joined, *self._pieces))
