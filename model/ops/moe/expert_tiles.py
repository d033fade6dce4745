"""Tiles of rows sorted by expert, each tile with rows of one expert only, found on the device.

Rows of expert e are in [ends[e - 1], ends[e]), ends [experts] int32, ascending. The number of tiles
is enough for any distribution of the rows. A spare tile finds no expert.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

_FEW_PAIRS = 8


@dataclass(frozen=True)
class Tile:
    """Work of one program: `rows` weight rows times `pairs` rows of one expert. stages: number of
    steps in flight."""

    rows: int
    pairs: int
    stages: int
    warps: int

    def constants(self, experts: int, rows: int, columns: int) -> dict[str, int]:
        """Return the compile-time constants of a kernel with this tile, over `experts` matrices
        [rows, columns]."""
        return {
            "ALL_ROWS": rows,
            "COLUMNS": columns,
            "EXPERTS": experts,
            "PADDED": triton.next_power_of_2(experts),
            "PAIRS": self.pairs,
            "ROWS": self.rows,
            "STAGES": self.stages,
        }


def are_few(pairs: int, experts: int) -> bool:
    """Return true if an expert has few (token, expert) pairs on average. Reading its matrix then
    takes most of the time."""
    return pairs <= _FEW_PAIRS * experts


def multiply(
    kernel: Any,
    pairs: Tensor,
    operands: Sequence[Tensor | None],
    ends: Tensor,
    shape: tuple[int, ...],
    tile: Tile,
    **constants: Any,
) -> Tensor:
    """Multiply pairs [P, columns] by their experts' matrices with a kernel. Return [P, rows] bf16.
    kernel: called as kernel(pairs, *operands, ends, output). shape: (experts, rows, columns). Rows
    past the last end are not written."""
    count = len(pairs)
    experts, rows, columns = shape
    output = torch.empty(count, rows, dtype=torch.bfloat16, device=pairs.device)
    tiles = min(triton.cdiv(count, tile.pairs) + experts, count)
    kernel[triton.cdiv(rows, tile.rows), tiles](
        pairs,
        *operands,
        ends,
        output,
        **tile.constants(experts, rows, columns),
        **constants,
        num_warps=tile.warps,
    )
    return output


@triton.jit
def place_of_tile(ends, tile, EXPERTS: tl.constexpr, PADDED: tl.constexpr, PAIRS: tl.constexpr):
    """Return the expert of tile number `tile`, the tile's first row, and the end of the expert's
    rows. For a spare tile the expert is EXPERTS or more."""
    index = tl.arange(0, PADDED)
    exists = index < EXPERTS
    end_of = tl.load(ends + index, exists, 0)
    begin_of = tl.load(ends + index - 1, exists & (index > 0), 0)
    tiles_of = tl.where(exists, (end_of - begin_of + PAIRS - 1) // PAIRS, 0)
    last_of = tl.cumsum(tiles_of, axis=0)
    # The first expert with an end of its tiles behind this one.
    expert = tl.sum(((last_of <= tile) & exists).to(tl.int32), axis=0)
    mine = index == expert
    first = tl.sum(tl.where(mine, last_of - tiles_of, 0), axis=0)
    end = tl.sum(tl.where(mine, end_of, 0), axis=0)
    begin = tl.sum(tl.where(mine, begin_of, 0), axis=0) + (tile - first) * PAIRS
    return expert, begin, end
