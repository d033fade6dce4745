"""Products of many rows with FP8 weights as they are stored (W8A16): a stream of weights through
the matrix instructions of the activations' dtype.

A program owns a tile of weight rows and of x's rows, and a share of the columns. Weights are turned
in registers (e4m3.py) and multiplied in bf16 (float32: IEEE); the sum of 128 columns gets its scale
in float32. Tiles are tall, since every tile reads x again, from the L2 cache, which is hardly
faster than memory; what a narrow output lacks in tiles, shares of the columns make up for, which
split_sums.py joins. Weights are the second operand of the matrix instruction, whose first takes 16
rows: so no two warps turn the same weights. The order of a row's sums depends on no other row, so a
row's result is the same at every batch size that takes the same tile. Twin: `reference.product`.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from tasuki.model.weights.fp8 import Fp8
from tasuki.utils.triton.dependent_launch import dependent
from tasuki.utils.triton.kernel_spec import KernelSpec

from .e4m3 import packed, turned
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


_PROGRAMS = 264
"""That are wanted at least: two a multiprocessor, of which one turns weights while one waits."""
_MOST_SPLIT = 8
HALF = 32
"""Rows of x in one matrix product: of 64, Triton would bring the weights back to shared memory."""
_EXACT = Tile(32, 16, 1, 2, 4)
"""In float32, whose operands take twice the memory and no matrix instruction."""


def tile_for(batch: int, rows: int, columns: int, dtype: torch.dtype) -> Tile:
    """By shapes alone, so that a captured graph holds one of them."""
    if dtype is not torch.bfloat16:
        return _EXACT
    tiles = triton.cdiv(rows, 128)
    split = 1
    while split < _MOST_SPLIT and tiles * split < _PROGRAMS and columns >= 2 * split * 4 * GROUP:
        split *= 2
    if batch <= 16:
        return Tile(128, 16, split, 4, 4)
    if batch <= 32:
        return Tile(128, 32, split, 4, 4)
    return Tile(128, 64, split, 3, 8)


def tile_of_prompts(dtype: torch.dtype) -> Tile:
    """One for every length, so that the first prompt compiles it."""
    return Tile(128, 64, 1, 3, 8) if dtype is torch.bfloat16 else _EXACT


def fp8_product(
    x: Tensor, weight: Fp8, output: Tensor | None = None, tile: Tile | None = None
) -> Tensor:
    """[B, rows] in x's dtype; x [B, columns], any row stride; weight [rows, columns] for kernels.
    output: where to write instead of to new memory, any row stride."""
    batch, columns = x.shape
    rows = weight.shape[0]
    output = x.new_empty(batch, rows) if output is None else output
    tile = tile or tile_for(batch, rows, columns, x.dtype)
    if tile.split == 1:
        _launch(x, weight, output, tile)
    else:
        joined(_parts(x, weight, tile), output)
    return output


def fp8_product_swiglu(x: Tensor, gate_up: Fp8, tile: Tile | None = None) -> Tensor:
    """silu(gate) * up [B, width] in x's dtype of x's product with gate_up [2 * width, columns]; no
    rounding between."""
    tile = tile or tile_for(x.shape[0], *gate_up.shape, x.dtype)
    output = x.new_empty(x.shape[0], gate_up.shape[0] // 2)
    joined_swiglu(_parts(x, gate_up, tile), output)
    return output


def _parts(x: Tensor, weight: Fp8, tile: Tile) -> Tensor:
    """[split, B, rows] float32."""
    parts = x.new_empty(tile.split, x.shape[0], weight.shape[0], dtype=torch.float32)
    _launch(x, weight, parts, tile)
    return parts


def _launch(x: Tensor, weight: Fp8, output: Tensor, tile: Tile) -> None:
    batch, columns = x.shape
    rows = weight.shape[0]
    _kernel[(triton.cdiv(rows, tile.rows), tile.split, triton.cdiv(batch, tile.batch))](
        x,
        weight.values,
        weight.scales,
        output,
        x.stride(0),
        output.stride(-2),
        batch,
        rows,
        COLUMNS=columns,
        BATCH=tile.batch,
        HALF=min(tile.batch, HALF),
        ROWS=tile.rows,
        SPLIT=tile.split,
        STAGES=tile.stages,
        **packed(weight.values),
        **scale_sizes(weight),
        **dependent(x),
        num_warps=tile.warps,
    )


@triton.jit
def store_rows(output, result, output_stride, share, item, row, batch, rows):
    at = (share * batch + item).to(tl.int64)[:, None] * output_stride + row[None, :]
    inside = (item < batch)[:, None] & (row < rows)[None, :]
    tl.store(output + at, result.to(output.dtype.element_ty), inside)


@triton.jit(do_not_specialize=["batch", "rows"])
def _kernel(
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
    HALF: tl.constexpr,
    ROWS: tl.constexpr,
    SPLIT: tl.constexpr,
    STAGES: tl.constexpr,
    PACKED: tl.constexpr,
    SCALE_ROWS: tl.constexpr,
    SCALE_COLUMNS: tl.constexpr,
    DEPENDENT: tl.constexpr,
):
    tl.static_assert(BATCH <= 2 * HALF and (SCALE_ROWS == 1 or SCALE_ROWS % ROWS == 0))
    grid: tl.constexpr = (COLUMNS + 127) // 128
    share: tl.constexpr = (grid + SPLIT - 1) // SPLIT
    first = tl.program_id(0) * ROWS
    row = first + tl.arange(0, ROWS)
    item = tl.program_id(2) * BATCH + tl.arange(0, HALF)
    column = tl.arange(0, 128)
    # Rows past the matrix read its last one and are not stored.
    of_row = values + tl.minimum(row, rows - 1).to(tl.int64)[None, :] * COLUMNS + column[:, None]
    of_item = x + item.to(tl.int64)[:, None] * x_stride + column[None, :]
    counts = (item < batch)[:, None]
    second = HALF * x_stride.to(tl.int64)
    counts_second = (item + HALF < batch)[:, None]
    if DEPENDENT:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    result = tl.zeros([HALF, ROWS], tl.float32)
    other = tl.zeros([HALF, ROWS], tl.float32)
    begin = tl.program_id(1) * share
    for block in tl.range(begin, min(begin + share, grid), num_stages=STAGES):
        at = block * 128
        if COLUMNS % 128:
            left = at + column < COLUMNS
            codes = tl.load(of_row + at, left[:, None], 0.0)
            inputs = tl.load(of_item + at, counts & left[None, :], 0.0)
        else:
            codes = tl.load(of_row + at)
            inputs = tl.load(of_item + at, counts, 0.0)
        weights = turned(codes, x.dtype.element_ty, PACKED)
        if SCALE_COLUMNS < COLUMNS:
            if SCALE_ROWS == 1:
                at_row = scales + tl.minimum(row, rows - 1) * grid + block
                scale = tl.load(at_row)[None, :]
            else:
                scale = tl.load(scales + first // SCALE_ROWS * grid + block)
            result += tl.dot(inputs, weights, input_precision="ieee") * scale
        else:
            result = tl.dot(inputs, weights, result, input_precision="ieee")
        if BATCH > HALF:
            if COLUMNS % 128:
                inputs = tl.load(of_item + second + at, counts_second & left[None, :], 0.0)
            else:
                inputs = tl.load(of_item + second + at, counts_second, 0.0)
            if SCALE_COLUMNS < COLUMNS:
                other += tl.dot(inputs, weights, input_precision="ieee") * scale
            else:
                other = tl.dot(inputs, weights, other, input_precision="ieee")
    if SCALE_COLUMNS >= COLUMNS:
        scale = tl.load(scales + tl.minimum(row, rows - 1))[None, :]
        result *= scale
        other *= scale
    store_rows(output, result, output_stride, tl.program_id(1), item, row, batch, rows)
    if BATCH > HALF:
        store_rows(output, other, output_stride, tl.program_id(1), item + HALF, row, batch, rows)


def compile_specs() -> list[KernelSpec]:
    """out_proj and gate_up of 9B, block scales, at each size of batch."""

    def spec(name: str, batch: int, rows: int, columns: int) -> KernelSpec:
        tile = tile_for(batch, rows, columns, torch.bfloat16)
        constants = {
            "COLUMNS": columns,
            "BATCH": tile.batch,
            "HALF": min(tile.batch, HALF),
            "ROWS": tile.rows,
            "SPLIT": tile.split,
            "STAGES": tile.stages,
            "PACKED": True,
            "SCALE_ROWS": GROUP,
            "SCALE_COLUMNS": GROUP,
            "DEPENDENT": True,
        }
        return KernelSpec.of(
            f"fp8_product_{name}_{batch}",
            _kernel,
            constants,
            tile.warps,
            fp32="scales output" if tile.split > 1 else "scales",
            values="*fp8e4nv",
        )

    shapes = (("out_proj", 4096, 4096), ("gate_up", 24576, 4096))
    return [spec(name, batch, *size) for batch in (16, 32, 64) for name, *size in shapes]
