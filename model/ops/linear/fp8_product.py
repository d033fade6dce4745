"""Products of many rows with FP8 weights as they are stored (W8A16): a stream of weights through
the matrix instructions of the activations' dtype.

A program owns a tile of weight rows and a tile of x's rows over all columns. Weights are turned in
registers, which is exact, and multiplied in bf16 (float32: IEEE); the sum of 128 columns gets its
scale in float32. The order of a row's sums depends on no other row, so a row's result is the same
at every batch size that takes the same tile. Twin: `reference.product`.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from tasuki.model.weights.fp8 import Fp8
from tasuki.utils.triton.dependent_launch import dependent, wait_for_inputs
from tasuki.utils.triton.kernel_spec import KernelSpec

from .fp8_scales import GROUP, scale_sizes


@dataclass(frozen=True)
class Tile:
    """`rows` of the weights and `batch` rows of x a program, so many steps of 128 columns in
    flight."""

    rows: int
    batch: int
    stages: int
    warps: int


_FEW_PROGRAMS = 256
"""Fewer leave multiprocessors idle, or end unevenly: then tiles are narrower."""
_PROMPTS = Tile(128, 128, 4, 8)
_EXACT = Tile(32, 16, 2, 4)
"""In float32, whose operands take twice the memory and no matrix instruction."""


def tile_for(batch: int, rows: int, dtype: torch.dtype) -> Tile:
    """By shapes alone, so that a captured graph holds one of them. Not yet chosen by
    measurement."""
    if dtype is not torch.bfloat16:
        return _EXACT
    narrow = rows < 64 * _FEW_PROGRAMS
    if batch <= 16:
        return Tile(32, 16, 8, 4) if narrow else Tile(64, 16, 6, 4)
    if batch <= 32:
        return Tile(32, 32, 6, 4) if narrow else Tile(64, 32, 6, 4)
    if batch <= 64:
        return Tile(64, 64, 4, 4) if narrow else Tile(128, 64, 4, 8)
    return _PROMPTS


def tile_of_prompts(dtype: torch.dtype) -> Tile:
    """One for every length, so that the first prompt compiles it."""
    return _PROMPTS if dtype is torch.bfloat16 else _EXACT


def fp8_product(
    x: Tensor, weight: Fp8, output: Tensor | None = None, tile: Tile | None = None
) -> Tensor:
    """[B, rows] in x's dtype; x [B, columns], any row stride; weight [rows, columns] for kernels.
    output: where to write instead of to new memory, any row stride."""
    batch, columns = x.shape
    rows = weight.shape[0]
    output = x.new_empty(batch, rows) if output is None else output
    tile = tile or tile_for(batch, rows, x.dtype)
    _kernel[(triton.cdiv(rows, tile.rows), triton.cdiv(batch, tile.batch))](
        x,
        weight.values,
        weight.scales,
        output,
        x.stride(0),
        output.stride(0),
        batch,
        rows,
        COLUMNS=columns,
        BATCH=tile.batch,
        ROWS=tile.rows,
        STAGES=tile.stages,
        **scale_sizes(weight),
        **dependent(x),
        num_warps=tile.warps,
    )
    return output


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
    ROWS: tl.constexpr,
    STAGES: tl.constexpr,
    SCALE_ROWS: tl.constexpr,
    SCALE_COLUMNS: tl.constexpr,
    DEPENDENT: tl.constexpr,
):
    grid: tl.constexpr = (COLUMNS + 127) // 128
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    item = tl.program_id(1) * BATCH + tl.arange(0, BATCH)
    column = tl.arange(0, 128)
    of_row = values + row.to(tl.int64)[:, None] * COLUMNS + column[None, :]
    of_item = x + item.to(tl.int64)[None, :] * x_stride + column[:, None]
    inside, counts = (row < rows)[:, None], (item < batch)[None, :]
    of_block = scales + row // SCALE_ROWS * grid
    wait_for_inputs(DEPENDENT)
    result = tl.zeros([ROWS, BATCH], tl.float32)
    for begin in tl.range(0, COLUMNS, 128, num_stages=STAGES):
        if COLUMNS % 128:
            left = begin + column < COLUMNS
            weights = tl.load(of_row + begin, inside & left[None, :], 0.0)
            inputs = tl.load(of_item + begin, counts & left[:, None], 0.0)
        else:
            weights = tl.load(of_row + begin, inside, 0.0)
            inputs = tl.load(of_item + begin, counts, 0.0)
        turned = weights.to(inputs.dtype)
        if SCALE_COLUMNS < COLUMNS:
            part = tl.dot(turned, inputs, input_precision="ieee")
            scale = tl.load(of_block + begin // 128, row < rows, 0.0)
            result += part * scale[:, None]
        else:
            result = tl.dot(turned, inputs, result, input_precision="ieee")
    if SCALE_COLUMNS >= COLUMNS:
        result *= tl.load(scales + row, row < rows, 0.0)[:, None]
    at = output + item.to(tl.int64)[None, :] * output_stride + row[:, None]
    tl.store(at, result.to(output.dtype.element_ty), inside & counts)


def compile_specs() -> list[KernelSpec]:
    """out_proj and gate_up of 9B, block scales, at each size of batch."""

    def spec(name: str, batch: int, rows: int, columns: int) -> KernelSpec:
        tile = tile_for(batch, rows, torch.bfloat16)
        sizes = {"COLUMNS": columns, "BATCH": tile.batch, "ROWS": tile.rows, "STAGES": tile.stages}
        constants = sizes | {"SCALE_ROWS": GROUP, "SCALE_COLUMNS": GROUP, "DEPENDENT": True}
        return KernelSpec.of(
            f"fp8_product_{name}_{batch}",
            _kernel,
            constants,
            tile.warps,
            fp32="scales",
            values="*fp8e4nv",
        )

    shapes = (("out_proj", 4096, 4096), ("gate_up", 24576, 4096))
    return [spec(name, batch, *size) for batch in (16, 32, 64, 128) for name, *size in shapes]
