"""Application of FP8 weights' scales by kernels, in the layout of `model/weights/kernel_layout.py`.

If SCALE_COLUMNS < COLUMNS a scale is for 128 columns, else for a whole row; it is for SCALE_ROWS
rows, 128 or 1. Values are multiplied as stored, and scales folded in float32.
"""

from dataclasses import dataclass

import triton
import triton.language as tl
from torch import Tensor

from tasuki.model.weights.kernel_layout import NvFp4Halves
from tasuki.model.weights.matrix import Matrix
from tasuki.model.weights.quantised_segments import BLOCK, Fp8

GROUP = BLOCK
"""Least number of columns with a common scale."""


def scale_sizes(weight: Fp8) -> dict[str, int]:
    """Return the constants of a kernel for this weight. REQUIRES: laid out for kernels."""
    assert weight.block_rows in (1, BLOCK) and weight.values.is_contiguous()
    # A whole row of 16 columns is no group of NVFP4.
    columns = max(weight.block_columns, GROUP)
    return {"SCALE_ROWS": weight.block_rows, "SCALE_COLUMNS": columns}


FP4_GROUP = 16
"""Columns with a common scale of NVFP4; it identifies NVFP4 matrices."""


@dataclass(frozen=True)
class Operand:
    """A matrix, or a stack of matrices, in the form taken by kernels for any kind. scales: None for
    plain numbers. factors: of NVFP4 alone."""

    values: Tensor
    scales: Tensor | None
    scale_rows: int
    scale_columns: int
    factors: Tensor | None = None

    @staticmethod
    def of(matrix: Matrix) -> "Operand":
        """Return the form. Raises WeightsError for several kinds, or for one without a kernel."""
        segment = matrix.only
        if isinstance(segment, NvFp4Halves):
            return Operand(segment.packed, segment.groups, 1, FP4_GROUP, segment.factors)
        if not isinstance(segment, Fp8):
            return Operand(matrix.plain, None, 1, max(matrix.shape[-1], GROUP))
        sizes = scale_sizes(segment)
        return Operand(segment.values, segment.scales, sizes["SCALE_ROWS"], sizes["SCALE_COLUMNS"])

    @property
    def least_columns(self) -> int:
        """Return the least number of columns read by a kernel at a time."""
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
    """Return tile [ROWS, BLOCK] e4m3 of the rows from `first` on and the columns from `begin` on,
    times value [BLOCK] float32. Each product has its scale, except scales for whole rows. Rows of
    one tile are in one block of rows; `height` rows exist."""
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
    """Return products [ROWS, BLOCK] with the columns of each run of RUN summed. A thread's part of
    a row then takes one register between blocks of columns."""
    ROWS: tl.constexpr = products.shape[0]
    RUNS: tl.constexpr = products.shape[1] // RUN
    return tl.sum(tl.reshape(products, [ROWS, RUNS, RUN]), axis=2)


@triton.jit
def row_scales(scales, first, height, ROWS: tl.constexpr):
    """Return the scales [ROWS], each for a whole row."""
    row = first + tl.arange(0, ROWS)
    return tl.load(scales + row, row < height, 0.0)


@triton.jit
def elements_of_row(WIDTH: tl.constexpr, SCALE_COLUMNS: tl.constexpr):
    """Return the stored values per row: bytes with two values each for NVFP4."""
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
    """Return the begin of one matrix's scales in a stack."""
    tall: tl.constexpr = (HEIGHT + SCALE_ROWS - 1) // SCALE_ROWS
    if SCALE_COLUMNS == 16:
        return scales + index * (tall * ((WIDTH + 127) // 128 * 8))
    else:
        wide: tl.constexpr = (WIDTH + SCALE_COLUMNS - 1) // SCALE_COLUMNS
        return scales + index * (tall * wide)
