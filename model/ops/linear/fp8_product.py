"""Products of many rows with FP8 weights as they are stored (W8A16): a stream of weights through
the matrix instructions of the activations' dtype.

A program owns a tile of weight rows and of x's rows, and a share of the columns. Weights are turned
in registers (e4m3.py) and multiplied in bf16 (float32: IEEE); the sum of 128 columns gets its scale
in float32. Tiles are tall, since every tile reads x again, from the L2 cache, which is hardly
faster than memory; what a narrow output lacks in tiles, shares of the columns make up for, which
split_sums.py joins. No two warps turn the same weights: of up to 16 rows of x those are the first
operand, of which an instruction takes 16 rows; of more the weights are, in registers, and x is read
from shared memory, once for all warps. The order of a row's sums depends on no other row, so a
row's result is the same at every batch size that takes the same tile. Twin: `reference.product`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from tasuki.model.weights.fp8 import Fp8
from tasuki.utils.triton.dependent_launch import dependent
from tasuki.utils.triton.kernel_spec import KernelSpec

from .e4m3 import packed, turned, turned_pairs
from .fp8_scales import GROUP, scale_sizes
from .split_sums import joined, joined_swiglu


@dataclass(frozen=True)
class Tile:
    """`rows` of the weights and `batch` rows of x a program, over one of `split` shares of the
    columns, so many steps of 128 columns in flight."""

    rows: int
    batch: int
    split: int
    stages: int
    warps: int

    def constants(self, columns: int) -> dict[str, int]:
        """Of a kernel over a matrix of so many columns."""
        return {
            "COLUMNS": columns,
            "BATCH": self.batch,
            "ROWS": self.rows,
            "SPLIT": self.split,
            "STAGES": self.stages,
        }


MOST_SECOND = 16
"""Rows of x up to which weights are the second operand."""
_PROGRAMS = 256
"""That are wanted at least: two a multiprocessor, of which one turns weights while one waits."""
_LEAST_BLOCKS = 4
"""Of 128 columns, in a share: a program fills and drains its pipeline once."""
_EXACT = Tile(32, 16, 1, 2, 4)
"""In float32, whose operands take twice the memory and no matrix instruction."""


def split_for(tiles: int, columns: int) -> int:
    """Shares of the columns, a power of two: until there are enough programs, or too few columns a
    program."""
    split = 1
    while tiles * split < _PROGRAMS and columns >= 2 * split * _LEAST_BLOCKS * GROUP:
        split *= 2
    return split


def tile_for(batch: int, rows: int, columns: int, dtype: torch.dtype) -> Tile:
    """By shapes alone, so that a captured graph holds one of them. Over matrices of 9B and 35B-A3B
    on an H200 the fastest, or within 6% of it, of 27 at 16 rows, of 26 at 32 and 64."""
    if dtype is not torch.bfloat16:
        return _EXACT
    split = split_for(triton.cdiv(rows, 64), columns)
    is_narrow = split > 2
    if batch <= MOST_SECOND:
        return Tile(64, 16, split, 8 if is_narrow else 6, 4)
    if batch <= 32:
        return Tile(64, 32, 2 * split, 3, 4) if is_narrow else Tile(64, 32, split, 4, 4)
    return Tile(64, 64, split, 4 if is_narrow else 3, 4)


def tile_of_prompts(dtype: torch.dtype) -> Tile:
    """One for every length, so that the first prompt compiles it."""
    return Tile(64, 64, 1, 3, 4) if dtype is torch.bfloat16 else _EXACT


def fp8_product(
    x: Tensor, weight: Fp8, output: Tensor | None = None, tile: Tile | None = None
) -> Tensor:
    """[B, rows] in x's dtype; x [B, columns], any row stride; weight [rows, columns] for kernels.
    output: where to write instead of to new memory, any row stride."""
    rows, columns = weight.shape
    tile = tile or tile_for(x.shape[0], rows, columns, x.dtype)
    return multiply(partial(_launch, x, weight, tile=tile), x, rows, tile, output)


def multiply(
    launch: Callable[[Tensor], None], x: Tensor, rows: int, tile: Tile, output: Tensor | None
) -> Tensor:
    """[B, rows] in x's dtype, in `output` if there is one. launch: fills a tensor [B, rows], or
    [split, B, rows] float32 of a tile that shares out the columns."""
    output = x.new_empty(x.shape[0], rows) if output is None else output
    if tile.split == 1:
        launch(output)
    else:
        parts = x.new_empty(tile.split, x.shape[0], rows, dtype=torch.float32)
        launch(parts)
        joined(parts, output)
    return output


def fp8_product_swiglu(x: Tensor, gate_up: Fp8, tile: Tile | None = None) -> Tensor:
    """silu(gate) * up [B, width] in x's dtype of x's product with gate_up [2 * width, columns]; no
    rounding between."""
    rows, columns = gate_up.shape
    tile = tile or tile_for(x.shape[0], rows, columns, x.dtype)
    parts = x.new_empty(tile.split, x.shape[0], rows, dtype=torch.float32)
    _launch(x, gate_up, parts, tile)
    output = x.new_empty(x.shape[0], rows // 2)
    joined_swiglu(parts, output)
    return output


def _launch(x: Tensor, weight: Fp8, output: Tensor, tile: Tile) -> None:
    launch_tiles(
        _fp8_product_kernel,
        x,
        (weight.values, weight.scales),
        weight.shape,
        output,
        tile,
        WEIGHTS_FIRST=tile.batch > MOST_SECOND,
        **scale_sizes(weight),
    )


def launch_tiles(
    kernel: Any,
    x: Tensor,
    stored: Sequence[Tensor],
    shape: tuple[int, ...],
    output: Tensor,
    tile: Tile,
    **constants: Any,
) -> None:
    """kernel(x, *stored, output, ...) over every tile of a matrix of that shape [rows, columns] and
    x [B, columns]."""
    batch, (rows, columns) = len(x), shape
    kernel[(triton.cdiv(rows, tile.rows), tile.split, triton.cdiv(batch, tile.batch))](
        x,
        *stored,
        output,
        x.stride(0),
        output.stride(-2),
        batch,
        rows,
        **tile.constants(columns),
        **packed(x),
        **constants,
        **dependent(x),
        num_warps=tile.warps,
    )


@triton.jit
def tile_of_rows(
    matrix, index, stride, column, WEIGHTS_FIRST: tl.constexpr, IS_FIRST: tl.constexpr
):
    """Pointers of a tile [rows, columns] where it is the product's first operand, else [columns,
    rows]."""
    if WEIGHTS_FIRST == IS_FIRST:
        return matrix + index[:, None] * stride + column[None, :]
    else:
        return matrix + index[None, :] * stride + column[:, None]


@triton.jit
def along(index, WEIGHTS_FIRST: tl.constexpr):
    """What goes with rows of weights of a product [rows, items] or [items, rows]."""
    if WEIGHTS_FIRST:
        return index[:, None]
    else:
        return index[None, :]


@triton.jit(do_not_specialize=["batch", "rows"])
def _fp8_product_kernel(
    x,
    values,
    scales,
    output,
    x_stride,
    output_stride,
    batch,
    rows,
    COLUMNS: tl.constexpr,
    BATCH: tl.constexpr,
    ROWS: tl.constexpr,
    SPLIT: tl.constexpr,
    STAGES: tl.constexpr,
    WEIGHTS_FIRST: tl.constexpr,
    PACKED: tl.constexpr,
    SCALE_ROWS: tl.constexpr,
    SCALE_COLUMNS: tl.constexpr,
    DEPENDENT: tl.constexpr,
):
    tl.static_assert(SCALE_ROWS == 1 or SCALE_ROWS % ROWS == 0)
    grid: tl.constexpr = (COLUMNS + 127) // 128
    share: tl.constexpr = (grid + SPLIT - 1) // SPLIT
    dtype: tl.constexpr = x.dtype.element_ty
    first = tl.program_id(0) * ROWS
    row = first + tl.arange(0, ROWS)
    item = tl.program_id(2) * BATCH + tl.arange(0, BATCH)
    # What is past the matrices reads their last row, and is not stored.
    kept = tl.minimum(row, rows - 1)
    taken = tl.minimum(item, batch - 1)
    column = tl.arange(0, 128)
    of_row = tile_of_rows(values, kept.to(tl.int64), COLUMNS, column, WEIGHTS_FIRST, True)
    of_item = tile_of_rows(x, taken.to(tl.int64), x_stride, column, WEIGHTS_FIRST, False)
    if DEPENDENT:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    if WEIGHTS_FIRST:
        result = tl.zeros([ROWS, BATCH], tl.float32)
    else:
        result = tl.zeros([BATCH, ROWS], tl.float32)
    begin = tl.program_id(1) * share
    for block in tl.range(begin, min(begin + share, grid), num_stages=STAGES):
        at = block * 128
        if COLUMNS % 128:
            left = at + column < COLUMNS
            codes = tl.load(of_row + at, along(left, not WEIGHTS_FIRST), 0.0)
            inputs = tl.load(of_item + at, along(left, WEIGHTS_FIRST), 0.0)
        else:
            codes = tl.load(of_row + at)
            inputs = tl.load(of_item + at)
        if WEIGHTS_FIRST:
            part = tl.dot(turned_pairs(codes, dtype, PACKED), inputs, input_precision="ieee")
        else:
            part = tl.dot(inputs, turned(codes, dtype, PACKED), input_precision="ieee")
        if SCALE_COLUMNS < COLUMNS:
            if SCALE_ROWS == 1:
                part *= along(tl.load(scales + kept * grid + block), WEIGHTS_FIRST)
            else:
                part *= tl.load(scales + first // SCALE_ROWS * grid + block)
        result += part
    if SCALE_COLUMNS >= COLUMNS:
        result *= along(tl.load(scales + kept), WEIGHTS_FIRST)
    line = (tl.program_id(1) * batch + item).to(tl.int64) * output_stride
    at = along(row, WEIGHTS_FIRST) + along(line, not WEIGHTS_FIRST)
    inside = along(row < rows, WEIGHTS_FIRST) & along(item < batch, not WEIGHTS_FIRST)
    tl.store(output + at, result.to(output.dtype.element_ty), inside)


def compile_specs() -> list[KernelSpec]:
    """out_proj and gate_up of 9B, block scales, at each size of batch."""

    def spec(name: str, batch: int, rows: int, columns: int) -> KernelSpec:
        tile = tile_for(batch, rows, columns, torch.bfloat16)
        constants = tile.constants(columns) | {
            "WEIGHTS_FIRST": tile.batch > MOST_SECOND,
            "PACKED": True,
            "SCALE_ROWS": GROUP,
            "SCALE_COLUMNS": GROUP,
            "DEPENDENT": True,
        }
        return KernelSpec.of(
            f"fp8_product_{name}_{batch}",
            _fp8_product_kernel,
            constants,
            tile.warps,
            fp32="scales output" if tile.split > 1 else "scales",
            values="*fp8e4nv",
        )

    shapes = (("out_proj", 4096, 4096), ("gate_up", 24576, 4096))
    return [spec(name, batch, *size) for batch in (16, 32, 64) for name, *size in shapes]
