"""Where the arenas of a region lie, where they are no neighbours: each rank's on a GPU of its own.

Everybody counts offsets as if the arenas lay one behind another; kernels count them from the lowest
address. Pure. Invariant: what is placed lies inside of one arena.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from tasuki.transfer.errors import OutOfBounds

Offsets = NDArray[np.int64]


@dataclass(frozen=True)
class Spread:
    """addresses: of the arenas in this process. size: bytes of each; stride: from where one begins
    in the region to where the next one does."""

    addresses: tuple[int, ...]
    size: int
    stride: int

    @property
    def region_bytes(self) -> int:
        return (len(self.addresses) - 1) * self.stride + self.size

    @property
    def begin(self) -> int:
        """The lowest address."""
        return min(self.addresses)

    @property
    def extent(self) -> int:
        """Bytes from there to the highest one, most of which may be nobody's."""
        return max(self.addresses) + self.size - self.begin

    @cached_property
    def _from_begin(self) -> Offsets:
        return np.array(self.addresses, dtype=np.int64) - self.begin

    def placed(self, offsets: Offsets, lengths: Offsets) -> Offsets:
        """Where runs at these offsets of the region are, in bytes from `begin`. Raises OutOfBounds,
        naming the first that no arena has whole."""
        arenas = offsets // self.stride
        inside = offsets - arenas * self.stride
        wrong = (arenas < 0) | (arenas >= len(self.addresses)) | (lengths < 1)
        wrong |= inside > self.size - lengths
        if wrong.any():
            index = int(wrong.argmax())
            raise OutOfBounds(
                f"piece {index}: bytes at {int(offsets[index])} of length {int(lengths[index])} "
                f"are in none of {len(self.addresses)} arenas of {self.size}, {self.stride} apart"
            )
        placed: Offsets = self._from_begin[arenas] + inside
        return placed
