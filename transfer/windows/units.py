"""What pieces are made of: the units of an arena that windows send whole, as numbers.

A unit is a block, or the state of one GDN layer, or of a draft layer, in one slot; every piece is
one unit or a run of blocks. Knows an arena's geometry; not layers' order, ids of requests or
transports. Pure.
Invariant: unit i of two arenas of one layout has the same length.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tasuki.pycache.layout import CacheLayout

from .descriptors import Pieces

Indices = NDArray[np.int32]


@dataclass(frozen=True)
class Strip:
    """`count` units of `length` bytes each, the first at `offset`, `stride` bytes apart."""

    offset: int
    length: int
    stride: int
    count: int


@dataclass(frozen=True)
class UnitPairs:
    """local[i] is sent to remote[i]; [units] int32 each."""

    local: Indices
    remote: Indices


@dataclass(frozen=True)
class TransferUnits:
    """Bytes of a block, of a slab, and of a GDN layer's state, and how many states a slab holds.
    carry_bytes: of a draft layer's state, which stands behind the others; 0 where there is none."""

    block_bytes: int
    slab_bytes: int
    state_bytes: int
    states: int
    carry_bytes: int = 0

    @staticmethod
    def of(layout: CacheLayout) -> "TransferUnits":
        return TransferUnits(
            layout.block_bytes,
            layout.slab_bytes,
            layout.state_layer_bytes,
            layout.gdn_layers,
            layout.carry_bytes,
        )

    def strips(self, arena_bytes: int) -> list[Strip]:
        """All units of an arena in the order of their numbers: blocks, then each layer's
        states."""
        slabs = arena_bytes // self.slab_bytes
        blocks = slabs * self.slab_bytes // self.block_bytes
        states = [
            Strip(layer * self.state_bytes, self.state_bytes, self.slab_bytes, slabs)
            for layer in range(self.states)
        ]
        if self.carry_bytes:
            states.append(Strip(self._carry_offset, self.carry_bytes, self.slab_bytes, slabs))
        return [Strip(0, self.block_bytes, self.block_bytes, blocks), *states]

    @property
    def _carry_offset(self) -> int:
        """Within a slab."""
        return self.states * self.state_bytes

    def indices(self, pieces: Pieces, local_bytes: int, remote_bytes: int) -> UnitPairs | None:
        """The pieces as units of arenas of these sizes; None where one is not made of whole
        units.

        pieces [n, 3] int64, inside both arenas.
        """
        whole = (pieces % self.block_bytes == 0).all(axis=1)
        runs = pieces if whole.all() else pieces[whole]
        counts = runs[:, 2] // self.block_bytes
        local = _runs(runs[:, 0] // self.block_bytes, counts)
        remote = _runs(runs[:, 1] // self.block_bytes, counts)
        if len(runs) == len(pieces):
            return UnitPairs(local, remote)
        # One by one: a window has few states, and each operation on an array costs as much as one.
        states = []
        for here, there, length in pieces[~whole].tolist():
            pair = (
                self._state(here, length, local_bytes),
                self._state(there, length, remote_bytes),
            )
            if None in pair:
                return None
            states.append(pair)
        numbers = np.array(states, dtype=np.int32)
        return UnitPairs(
            np.concatenate([local, numbers[:, 0]]), np.concatenate([remote, numbers[:, 1]])
        )

    def _state(self, offset: int, length: int, arena_bytes: int) -> int | None:
        """The number of the state that begins there and is so long."""
        slot, within = divmod(offset, self.slab_bytes)
        if self.carry_bytes and (within, length) == (self._carry_offset, self.carry_bytes):
            layer = self.states
        else:
            layer, rest = divmod(within, self.state_bytes)
            if rest or layer >= self.states or length != self.state_bytes:
                return None
        slabs = arena_bytes // self.slab_bytes
        return slabs * self.slab_bytes // self.block_bytes + layer * slabs + slot


def _runs(firsts: NDArray[np.int64], counts: NDArray[np.int64]) -> Indices:
    """Numbers first, first + 1, ... `counts` of them, of each run."""
    if len(counts) == 0:
        return np.empty(0, dtype=np.int32)
    ends = np.cumsum(counts)
    steps = np.arange(int(ends[-1])) - np.repeat(ends - counts, counts)
    numbers: Indices = (np.repeat(firsts, counts) + steps).astype(np.int32)
    return numbers
