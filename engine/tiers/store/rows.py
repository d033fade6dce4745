"""Memory that pages and slots pass through on their way to a store and back: a row each.

A row begins at a sector of memory and is a whole number of them long, as direct reads and writes
of a disk need it.
"""

import mmap

import numpy as np
from numpy.typing import NDArray

SECTOR = 4096
Row = NDArray[np.uint8]
"""[row bytes]: what passes, then whatever."""
Rows = NDArray[np.uint8]
"""[rows, row bytes], each as a Row."""


def row_bytes(size: int) -> int:
    """Of a row for so many bytes."""
    return -(-size // SECTOR) * SECTOR


class PassingRows:
    """Grows to the most that was asked for. Thread rule: one thread; what it gave out before is
    overwritten."""

    def __init__(self) -> None:
        self._memory: NDArray[np.uint8] = np.empty(0, np.uint8)

    def rows(self, count: int, size: int) -> Rows:
        """For so many bytes each, with whatever was there."""
        length = count * row_bytes(size)
        if len(self._memory) < length:
            # A map of its own begins at a sector.
            self._memory = np.frombuffer(mmap.mmap(-1, length), np.uint8)
        return self._memory[:length].reshape(count, row_bytes(size))
