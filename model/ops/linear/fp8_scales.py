"""Use of FP8 weights' scales in kernels, in the layout of `model/weights/kernel_layout.py`.

If SCALE_COLUMNS < COLUMNS a scale covers 128 columns, else a whole row. It covers SCALE_ROWS rows,
128 or 1. Values are multiplied as stored, and scales are applied in float32.
"""

from dataclasses import dataclass

import triton
import triton.language as tl
from torch import Tensor

from tasuki.model.weights.kernel_layout import NvFp4Halves
from tasuki.model.weights.matrix import Matrix
from tasuki.model.weights.quantised_segments import BLOCK, Fp8

GROUP = BLOCK
"""Least number of neighbouring columns with a common FP8 scale."""


def scale_sizes(weight: Fp8) -> dict[str, int]:
    """Return the kernel's constants for the scales of this weight. REQUIRES: the weight is laid out
    for kernels."""
    assert weight.block_rows in (1, BLOCK) and weight.values.is_contiguous()
    # A whole row of 16 columns is no group of NVFP4.
    columns = max(weight.block_columns, GROUP)
    return {"SCALE_ROWS": weight.block_rows, "SCALE_COLUMNS": columns}


FP4_GROUP = 16
"""Number of neighbouring columns with a common NVFP4 scale. This kernel constant also identifies
NVFP4 matrices."""


@dataclass(frozen=True)
class Operand:
    """A matrix, or a stack of matrices, as arguments of the kernels for any storage format. scales:
    None for plain numbers. factors: float32 factors of NVFP4; None for others. scale_rows,
    scale_columns: rows and columns under one scale."""

    values: Tensor
    scales: Tensor | None
    scale_rows: int
    scale_columns: int
    factors: Tensor | None = None

    @staticmethod
    def of(matrix: Matrix) -> "Operand":
        """Return the kernel arguments for a matrix. Raises WeightsError if it has several storage
        formats, or one without a kernel."""
        segment = matrix.only
        if isinstance(segment, NvFp4Halves):
            return Operand(segment.packed, segment.groups, 1, FP4_GROUP, segment.factors)
        if not isinstance(segment, Fp8):
            return Operand(matrix.plain, None, 1, max(matrix.shape[-1], GROUP))
        sizes = scale_sizes(segment)
        return Operand(segment.values, segment.scales, sizes["SCALE_ROWS"], sizes["SCALE_COLUMNS"])

    @property
    def least_columns(self) -> int:
        """Return the least number of columns that a kernel reads at a time."""
        return 1 if self.scales is None else GROUP


@triton.jit
def scaled_products(
    tile,
    value,
    scales,
    first,
    height,
    begin,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    COLUMNS: tl.constexpr,
    SCALE_ROWS: tl.constexpr,
    SCALE_COLUMNS: tl.constexpr,
):
    """Multiply a tile of weights by inputs. Return [ROWS, BLOCK] float32, with scales applied
    unless they are for whole rows. tile [ROWS, BLOCK] e4m3: rows from `first` on, columns from
    `begin` on. value [BLOCK] float32: inputs. height: number of rows of the matrix. All rows of a
    tile are in one block of rows."""
    grid: tl.constexpr = (COLUMNS + 127) // 128
    GROUPS: tl.constexpr = BLOCK // 128
    if SCALE_COLUMNS < COLUMNS:
        group = begin // 128 + tl.arange(0, GROUPS)
        if SCALE_ROWS == 1:
            row = first + tl.arange(0, ROWS)
            column = begin // 128 + tl.arange(0, BLOCK) // 128
            at = row.to(tl.int64)[:, None] * grid + column[None, :]
            inside = (row < height)[:, None] & (column < grid)[None, :]
            return tile.to(tl.float32) * (value[None, :] * tl.load(scales + at, inside, 0.0))
        else:
            scale = tl.load(scales + first // SCALE_ROWS * grid + group, group < grid, 0.0)
            value = tl.reshape(tl.reshape(value, [GROUPS, 128]) * scale[:, None], [BLOCK])
            return tile.to(tl.float32) * value[None, :]
    else:
        return tile.to(tl.float32) * value[None, :]


@triton.jit
def run_sums(products, RUN: tl.constexpr):
    """Sum products [ROWS, BLOCK] over each run of RUN columns. A thread's part of a row then takes
    one register between blocks of columns."""
    ROWS: tl.constexpr = products.shape[0]
    RUNS: tl.constexpr = products.shape[1] // RUN
    return tl.sum(tl.reshape(products, [ROWS, RUNS, RUN]), axis=2)


@triton.jit
def row_scales(scales, first, height, ROWS: tl.constexpr):
    """Return the scales of ROWS rows from `first` on, [ROWS]; 0 for rows from `height` on.
    REQUIRES: each scale covers a whole row."""
    row = first + tl.arange(0, ROWS)
    return tl.load(scales + row, row < height, 0.0)


@triton.jit
def elements_of_row(WIDTH: tl.constexpr, SCALE_COLUMNS: tl.constexpr):
    """Return the number of stored elements per row of WIDTH columns. For NVFP4 they are bytes with
    two values each."""
    result: tl.constexpr = (WIDTH + 127) // 128 * 64 if SCALE_COLUMNS == 16 else WIDTH
    return result


@triton.jit
def scales_of(
    scales,
    index,
    HEIGHT: tl.constexpr,
    WIDTH: tl.constexpr,
    SCALE_ROWS: tl.constexpr,
    SCALE_COLUMNS: tl.constexpr,
):
    """Return the address of the scales of matrix number `index` in a stack."""
    tall: tl.constexpr = (HEIGHT + SCALE_ROWS - 1) // SCALE_ROWS
    if SCALE_COLUMNS == 16:
        return scales + index * (tall * ((WIDTH + 127) // 128 * 8))
    else:
        wide: tl.constexpr = (WIDTH + SCALE_COLUMNS - 1) // SCALE_COLUMNS
        return scales + index * (tall * wide)
