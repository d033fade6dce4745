"""Cells of an arena in which windows are encoded and from which they are posted.

Owns which cell is whose. Knows offsets; not what is in a cell. Thread rule: one thread.
Invariants: every cell is free or held by one holder; a holder has at most half of them, so that one
link that stands still leaves the other half to the others; a cell takes any window, so none waits
for a hole of its size.
"""

from collections import Counter
from dataclasses import dataclass

from .row_codec import ALIGNMENT
from .settings import WireSettings
from .wire_layout import WireError, WireUnits

_MOST_CELLS = 16
_LEAST_CELLS = 2
_LEAST_SLABS_LEFT = 4
_LARGEST_SHARE = 8
_MIB = 2**20


@dataclass(frozen=True)
class Cell:
    """`size` bytes of the arena from `offset`."""

    offset: int
    size: int
    holder: str


class StagingBuffer:
    def __init__(self, offset: int, size: int, largest_unit: int) -> None:
        """Of the bytes [offset, offset + size). REQUIRES: two of the largest unit fit; ALIGNMENT
        divides offset."""
        count = min(_MOST_CELLS, size // largest_unit)
        self.cell_bytes = size // count // ALIGNMENT * ALIGNMENT
        self._free = [offset + index * self.cell_bytes for index in reversed(range(count))]
        self._count = count
        self._held: Counter[str] = Counter()

    @property
    def in_use(self) -> int:
        return self._count - len(self._free)

    def has_room(self, holder: str) -> bool:
        """Whether take() would give a cell."""
        return bool(self._free) and self._held[holder] < self._count // 2

    def take(self, holder: str) -> Cell:
        """REQUIRES: has_room(holder)."""
        assert self.has_room(holder)
        self._held[holder] += 1
        return Cell(self._free.pop(), self.cell_bytes, holder)

    def give_back(self, cell: Cell) -> None:
        """Once each."""
        self._free.append(cell.offset)
        self._held[cell.holder] -= 1
        if not self._held[cell.holder]:
            del self._held[cell.holder]


def slabs_kept_back(wire: WireSettings, units: WireUnits, slabs: int) -> int:
    """Return the slabs of an arena of `slabs` slabs that encoded windows take. Raises WireError
    where too few are left."""
    if wire.precision.exact:
        return 0
    slab = units.layout.slab_bytes
    wanted = min(-(-wire.staging_mib * _MIB // slab), slabs // _LARGEST_SHARE)
    kept = max(wanted, -(-_LEAST_CELLS * units.largest_encoded // slab))
    if slabs - kept < _LEAST_SLABS_LEFT:
        raise WireError(
            f"the arena has {slabs} slabs, of which a wire that is not exact keeps {kept} "
            f"back, and {_LEAST_SLABS_LEFT} must be left: give more --arena-mib"
        )
    return kept
