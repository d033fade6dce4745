"""Digests of windows out of arenas that are no neighbours, by a digester that reaches them all.

Thread rule: as of the digester. Windows are rows by heads (head_rows.py), whose offsets are those
of the region.
"""

from collections.abc import Sequence
from dataclasses import replace

from tasuki.transfer.windows.digest import ArenaWindow, Digester, WindowRows
from tasuki.transfer.windows.spread import Spread

_WORD = 8


class SpreadDigester(Digester):
    def __init__(self, own: Digester, origin: int, spread: Spread) -> None:
        """own: whose offsets count from the address `origin`, and may be negative."""
        self._own = own
        self._further = spread.begin - origin
        self._spread = spread

    def digest_rows(self, rows: WindowRows) -> int:
        placed = self._spread.placed(rows.offsets * _WORD, rows.lengths * _WORD)
        return self._own.digest_rows(replace(rows, offsets=(placed + self._further) // _WORD))

    def digest_all(self, windows: Sequence[ArenaWindow]) -> list[int]:
        raise AssertionError("a window of several ranks lies in no one arena")
