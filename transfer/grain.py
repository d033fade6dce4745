"""What pieces are made of: the units of an arena that windows send whole, as numbers.

A unit is a block, or the state of one GDN layer in one slot; every piece is one unit or a run of
blocks. Knows an arena's geometry; not layers' order, ids of requests or transports. Pure.
Invariant: unit i of two arenas of one layout has the same length.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..pycache.layout import CacheLayout
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
class Grain:
    """Bytes of a block, of a slab, and of a GDN layer's state, and how many states a slab holds."""

    block_bytes: int
    slab_bytes: int
    state_bytes: int
    states: int

    @staticmethod
    def of(layout: CacheLayout) -> "Grain":
        return Grain(
            layout.block_bytes, layout.slab_bytes, layout.state_layer_bytes, layout.gdn_layers
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
        return [Strip(0, self.block_bytes, self.block_bytes, blocks), *states]

    def indices(self, pieces: Pieces, local_bytes: int, remote_bytes: int) -> UnitPairs | None:
        """The pieces as units of arenas of these sizes; None where one is not made of whole
        units.

        pieces [n, 3] int64, inside both arenas.
        """
        runs = (pieces % self.block_bytes == 0).all(axis=1)
        sides = [(pieces[:, 0], local_bytes), (pieces[:, 1], remote_bytes)]
        if runs.all():
            counts = pieces[:, 2] // self.block_bytes
            local, remote = (_runs(offsets // self.block_bytes, counts) for offsets, _ in sides)
            return UnitPairs(local, remote)
        if runs.any():
            parts = [
                self.indices(pieces[rows], local_bytes, remote_bytes) for rows in (runs, ~runs)
            ]
            whole = [part for part in parts if part is not None]
            if len(whole) < len(parts):
                return None
            return UnitPairs(
                np.concatenate([part.local for part in whole]),
                np.concatenate([part.remote for part in whole]),
            )
        return self._states(pieces, local_bytes, remote_bytes)

    def _states(self, pieces: Pieces, local_bytes: int, remote_bytes: int) -> UnitPairs | None:
        found = []
        for offsets, size in ((pieces[:, 0], local_bytes), (pieces[:, 1], remote_bytes)):
            slots, within = np.divmod(offsets, self.slab_bytes)
            layers, rest = np.divmod(within, self.state_bytes)
            if rest.any() or (layers >= self.states).any():
                return None
            slabs = size // self.slab_bytes
            first = slabs * self.slab_bytes // self.block_bytes
            found.append((first + layers * slabs + slots).astype(np.int32))
        if (pieces[:, 2] != self.state_bytes).any():
            return None
        return UnitPairs(*found)


def _runs(firsts: NDArray[np.int64], counts: NDArray[np.int64]) -> Indices:
    """Numbers first, first + 1, ... `counts` of them, of each run."""
    ends = np.cumsum(counts)
    steps = np.arange(int(ends[-1])) - np.repeat(ends - counts, counts)
    numbers: Indices = (np.repeat(firsts, counts) + steps).astype(np.int32)
    return numbers
