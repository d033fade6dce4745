"""Windows between nodes of which one at least has several ranks: bytes leave from where each rank
has them, straight to where each of the receiver's ranks wants them.

As WindowSource. Thread rule: as there. REQUIRES: what is long finished was so on every rank of this
node when it was planned; for what is not, the sender's counter has the slowest rank's steps.
"""

from collections.abc import Sequence

from tasuki.transfer.windows.descriptors import Pieces
from tasuki.transfer.windows.destination import Destination, granted_pages
from tasuki.transfer.windows.digest import ArenaWindow, Digester, WindowRows
from tasuki.transfer.windows.unit_sizes import UnitSizes
from tasuki.transfer.windows.window import FinishedLayers, Run, Window, cut

from .head_rows import BY_HEADS, HeadRows
from .spans import RankSpans
from .window_pieces import RankedPieces


class RankedSource:
    code = BY_HEADS
    in_place = False
    most_together = 64

    def __init__(
        self,
        ours: RankSpans,
        theirs: RankSpans,
        digester: Digester,
    ) -> None:
        """digester: of the region. Raises ValueError where the heads cannot be shared out."""
        self.digester = digester
        self._ours = ours
        self._pieces = RankedPieces(ours, theirs)
        self._rows = HeadRows(ours, theirs.ranks)

    @property
    def sizes(self) -> UnitSizes:
        """Without copies, of which the receiver's ranks may want several."""
        return self._ours.layout

    def toward(self, theirs: RankSpans, slabs: int) -> "RankedSource":
        return RankedSource(self._ours, theirs, self.digester)

    def windows(
        self, plan: FinishedLayers, runs: Sequence[Run], first_sequence: int
    ) -> list[Window]:
        return cut(plan, runs, first_sequence)

    def has_room(self, peer: str) -> bool:
        return True

    def load(self, peer: str, window: Window) -> "_RankedWindow":
        return _RankedWindow(self._pieces, self._rows, window)


class _RankedWindow:
    def __init__(self, pieces: RankedPieces, rows: HeadRows, window: Window) -> None:
        self._pieces = pieces
        self._rows = rows
        self._window = window

    def pieces(self, destination: Destination) -> Pieces:
        window, header = self._window, self._window.header
        here, there = window.local_slot, destination.slot
        slots = None if here is None or there is None else (here, there)
        granted = granted_pages(destination, header)
        return self._pieces.of_window(header, window.local_pages, granted, slots)

    def digestible(self, room: int, generation: int) -> WindowRows:
        window = self._window
        placed = ArenaWindow(room, generation, window.header, window.local_pages, window.local_slot)
        return self._rows.of_window(placed)

    def release(self) -> None:
        """Pages and slot are the engine's."""
