"""The rows of pictures: finished embeddings, kept within a budget of bytes.

A picture's rows are found under its salt only. Otherwise the time of an answer would reveal that
another tenant sent the same picture. Rows needed by a prompt are pinned; of the others the least
recently used go first.

Owns the rows. Thread rule: the engine loop's, and its runner's on the same thread. Invariants: rows
and reservations together are within the budget. Pinned rows stay where they are.
"""

from collections import OrderedDict
from dataclasses import dataclass
from typing import NewType, Protocol

from torch import Tensor

from tasuki.pycache.keys import PictureDigest

PictureNumber = NewType("PictureNumber", int)
"""Name of stored rows in plans, never used twice."""

PictureName = tuple[bytes, PictureDigest]
"""Salt and digest of a picture."""


class RowsGone(Exception):
    """Rows named by a plan are not stored. Engine and runner no longer agree; restart the node."""


class RowMirror(Protocol):
    """Hears of the rows of a store, to keep the same ones elsewhere."""

    def stored(self, number: PictureNumber) -> None:
        """Keep the rows computed last under this number."""

    def dropped(self, number: PictureNumber) -> None: ...


class FindRows(Protocol):
    """Rows of pictures by the numbers of a plan."""

    def rows(self, number: PictureNumber) -> Tensor:
        """Return stored rows [tokens, hidden]. Raises RowsGone."""


@dataclass
class _Stored:
    name: PictureName
    rows: Tensor
    pins: int = 0


class RowStore:
    """Rows by salt and digest, within a budget. Implements FindRows."""

    def __init__(self, budget: int, row_bytes: int, mirror: RowMirror | None = None) -> None:
        """budget: bytes of all rows. row_bytes: of one row. mirror: hears of each change; None: no
        other rank has the rows."""
        self._mirror = mirror
        self._budget = budget
        self._row_bytes = row_bytes
        self._stored: OrderedDict[PictureNumber, _Stored] = OrderedDict()
        """By number, the least recently used first."""
        self._numbers: dict[PictureName, PictureNumber] = {}
        self._reserved: dict[PictureName, int] = {}
        self._next = 0
        self.nbytes = 0
        """Bytes of rows and reservations."""

    @property
    def most_tokens(self) -> int:
        """Return the largest number of tokens of one picture the budget has space for."""
        return self._budget // self._row_bytes

    @property
    def pinned(self) -> int:
        """Return the number of pins, of all rows together."""
        return sum(stored.pins for stored in self._stored.values())

    @property
    def reservations(self) -> int:
        return len(self._reserved)

    def use(self) -> dict[str, int]:
        """Return the budget's bytes by use: pinned, kept (stored without a pin), free. Reserved
        space counts as pinned."""
        pinned = sum(stored.rows.nbytes for stored in self._stored.values() if stored.pins)
        pinned += sum(self._reserved.values())
        kept = self.nbytes - pinned
        return {"pinned": pinned, "kept": kept, "free": self._budget - self.nbytes}

    def __len__(self) -> int:
        return len(self._stored)

    def has(self, name: PictureName) -> bool:
        """Return True if the picture's rows are stored."""
        return name in self._numbers

    def pin(self, name: PictureName) -> PictureNumber | None:
        """Keep a picture's rows until unpin(). name: its salt and digest. Return the picture's
        number; None if its rows are not stored."""
        number = self._numbers.get(name)
        if number is not None:
            self._stored[number].pins += 1
            self._stored.move_to_end(number)
        return number

    def touch(self, name: PictureName) -> bool:
        """Return True if a picture's rows are stored. They count as used now."""
        number = self._numbers.get(name)
        if number is not None:
            self._stored.move_to_end(number)
        return number is not None

    def unpin(self, number: PictureNumber) -> None:
        """Undo one pin(). REQUIRES: it is pinned."""
        stored = self._stored[number]
        assert stored.pins > 0
        stored.pins -= 1

    def reserve(self, name: PictureName, tokens: int) -> bool:
        """Make space for a picture's rows, by eviction if need be. Return True if it is reserved.
        Return False, with nothing changed, if pinned rows leave too little. REQUIRES: neither
        stored nor reserved."""
        wanted = tokens * self._row_bytes
        idle = [number for number, stored in self._stored.items() if not stored.pins]
        free = self._budget - self.nbytes
        victims = []
        for number in idle:
            if free >= wanted:
                break
            victims.append(number)
            free += self._stored[number].rows.nbytes
        if free < wanted:
            return False
        for number in victims:
            self._drop(number)
        self._reserved[name] = wanted
        self.nbytes += wanted
        return True

    def cancel(self, name: PictureName) -> None:
        """Give a reservation back."""
        self.nbytes -= self._reserved.pop(name)

    def put(self, name: PictureName, rows: Tensor) -> None:
        """Store a picture's rows [tokens, hidden], unpinned. REQUIRES: as large as reserved."""
        assert rows.nbytes == self._reserved[name]
        del self._reserved[name]
        number = PictureNumber(self._next)
        self._next += 1
        self._stored[number] = _Stored(name, rows)
        self._numbers[name] = number
        if self._mirror is not None:
            self._mirror.stored(number)

    def rows(self, number: PictureNumber) -> Tensor:
        """Return stored rows [tokens, hidden]. Raises RowsGone."""
        stored = self._stored.get(number)
        if stored is None:
            raise RowsGone(f"rows {number} of a picture are not stored; restart the node")
        return stored.rows

    def clear(self) -> None:
        """Drop all stored rows without a pin: no prompt needs them."""
        for number in [number for number, stored in self._stored.items() if not stored.pins]:
            self._drop(number)

    def _drop(self, number: PictureNumber) -> None:
        stored = self._stored.pop(number)
        del self._numbers[stored.name]
        self.nbytes -= stored.rows.nbytes
        if self._mirror is not None:
            self._mirror.dropped(number)
