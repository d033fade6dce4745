"""Tiles of rows in expert order, each of one expert alone, found on the device.

Rows of expert e are in [ends[e - 1], ends[e]), ends [experts] int32, ascending. There are as many
tiles as any placement of so many rows can need; those that are left over find no expert.
"""

from dataclasses import dataclass

import triton
import triton.language as tl

_FEW_PAIRS = 8


@dataclass(frozen=True)
class Tile:
    """`rows` of the weights, `pairs` of an expert a program, so many steps in flight."""

    rows: int
    pairs: int
    stages: int
    warps: int

    def programs(self, count: int, experts: int, rows: int) -> tuple[int, int]:
        """Of count pairs and matrices of so many rows."""
        tiles = min(triton.cdiv(count, self.pairs) + experts, count)
        return triton.cdiv(rows, self.rows), tiles


def are_few(pairs: int, experts: int) -> bool:
    """Whether an expert has so few of them that its matrix is a stream of weights."""
    return pairs <= _FEW_PAIRS * experts


@triton.jit
def place_of_tile(ends, tile, EXPERTS: tl.constexpr, PADDED: tl.constexpr, PAIRS: tl.constexpr):
    """(expert, its first row here, its end); EXPERTS or more where the tile is left over."""
    index = tl.arange(0, PADDED)
    exists = index < EXPERTS
    end_of = tl.load(ends + index, exists, 0)
    begin_of = tl.load(ends + index - 1, exists & (index > 0), 0)
    tiles_of = tl.where(exists, (end_of - begin_of + PAIRS - 1) // PAIRS, 0)
    last_of = tl.cumsum(tiles_of, axis=0)
    # The first whose tiles end behind it.
    expert = tl.sum(((last_of <= tile) & exists).to(tl.int32), axis=0)
    mine = index == expert
    first = tl.sum(tl.where(mine, last_of - tiles_of, 0), axis=0)
    end = tl.sum(tl.where(mine, end_of, 0), axis=0)
    begin = tl.sum(tl.where(mine, begin_of, 0), axis=0) + (tile - first) * PAIRS
    return expert, begin, end
