"""Parts shared by products of many rows with stored weights: the tile of a program, loads of plain
tiles, stores, and the addition of shares.

A program owns a tile of weight rows and of x's rows, over one share of the columns. Either operand
may be the first of the matrix instruction. Reference: `reference.product`.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from .split_sums import joined


@dataclass(frozen=True)
class Tile:
    """Work of one program: `rows` weight rows times `batch` rows of x, over one of `split` shares
    of the columns. stages: number of steps of 128 columns in flight."""

    rows: int
    batch: int
    split: int
    stages: int
    warps: int

    def constants(self, columns: int) -> dict[str, int]:
        """Return the compile-time constants of a kernel with this tile, for a matrix of `columns`
        columns."""
        return {
            "COLUMNS": columns,
            "BATCH": self.batch,
            "ROWS": self.rows,
            "SPLIT": self.split,
            "STAGES": self.stages,
        }


def multiply(
    launch: Callable[[Tensor], None], x: Tensor, rows: int, tile: Tile, output: Tensor | None
) -> Tensor:
    """Run a product and return its result [B, rows] in x's dtype, in `output` if given. launch:
    starts the kernel on a result tensor. If the tile shares out the columns, this tensor is [split,
    B, rows] float32, and the parts are added up here."""
    output = x.new_empty(x.shape[0], rows) if output is None else output
    if tile.split == 1:
        launch(output)
    else:
        parts = x.new_empty(tile.split, x.shape[0], rows, dtype=torch.float32)
        launch(parts)
        joined(parts, output)
    return output


def are_copied(*matrices: Tensor) -> bool:
    """Return true if the tensor copy engine (TMA, from Hopper on) can read the matrices: they are
    aligned to 16 bytes. Triton's interpreter emulates it."""
    device = matrices[0].device
    if device.type == "cuda" and torch.cuda.get_device_capability(device) < (9, 0):
        return False
    return all(
        matrix.data_ptr() % 16 == 0 and matrix.stride(0) * matrix.element_size() % 16 == 0
        for matrix in matrices
    )


@triton.jit
def along(index, WEIGHTS_FIRST: tl.constexpr):
    """Return the index as a column vector if WEIGHTS_FIRST is true, else as a row vector."""
    if WEIGHTS_FIRST:
        return index[:, None]
    else:
        return index[None, :]


@triton.jit
def weight_tile(matrix, rows, column, COLUMNS: tl.constexpr, WEIGHTS_FIRST: tl.constexpr):
    """Return elements (rows, column) of the plain matrix as an operand of the product; 0 past the
    matrix."""
    of_row = along(rows.to(tl.int64), WEIGHTS_FIRST) * COLUMNS
    tile = matrix + of_row + along(column, not WEIGHTS_FIRST)
    if COLUMNS % 128:
        return tl.load(tile, along(column < COLUMNS, not WEIGHTS_FIRST), 0.0)
    else:
        return tl.load(tile)


@triton.jit
def input_tile(x, items, batch, stride, column, COLUMNS: tl.constexpr, WEIGHTS_FIRST: tl.constexpr):
    """Return elements (items, column) of x as the other operand of the product; 0 past the last row
    or column."""
    of_item = along(items.to(tl.int64), not WEIGHTS_FIRST) * stride
    tile = x + of_item + along(column, WEIGHTS_FIRST)
    inside = along(items < batch, not WEIGHTS_FIRST)
    if COLUMNS % 128:
        inside = inside & along(column < COLUMNS, WEIGHTS_FIRST)
    return tl.load(tile, inside, 0.0)


@triton.jit
def stored(output, result, row, height, item, batch, stride, WEIGHTS_FIRST: tl.constexpr):
    """Store a tile's result into its share's part of output. row: weight rows of the tile; height:
    number of all weight rows; item: x's rows."""
    line = (tl.program_id(1) * batch + item).to(tl.int64) * stride
    at = along(row, WEIGHTS_FIRST) + along(line, not WEIGHTS_FIRST)
    inside = along(row < height, WEIGHTS_FIRST) & along(item < batch, not WEIGHTS_FIRST)
    tl.store(output + at, result.to(output.dtype.element_ty), inside)
