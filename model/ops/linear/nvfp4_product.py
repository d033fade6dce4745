"""Products with NVFP4 weights in the layout of kernel_layout.py (W4A16), of any number of rows:
`fp8_product.py` for half the bytes.

In each 128 columns a program converts two tiles of 64 columns in registers (e2m1.py), scaled by
group, exactly. It multiplies each with its columns of x. The sum of all columns gets the tensor's
scale in float32. Rows of prompts are multiplied in the same way, because no supported GPU has e2m1
in its matrix instructions. Reference: `reference.product`.
"""

from functools import partial

import torch
import triton
import triton.language as tl
from torch import Tensor

from tasuki.model.weights.kernel_layout import NvFp4Halves
from tasuki.utils.triton.instructions import dependent
from tasuki.utils.triton.kernel_spec import KernelSpec

from .e2m1 import grouped_halves, row_factors
from .fp8_product import split_for
from .product_tiles import Tile, multiply

HALF = 32
"""Number of x's rows in one matrix instruction. With 64, Triton would copy the converted weights
back to shared memory."""
_EXACT = Tile(32, 16, 1, 2, 4)


def tile_for(batch: int, rows: int, columns: int, dtype: torch.dtype) -> Tile:
    """Return the kernel's tile, chosen by the shapes and dtype alone. So a captured CUDA graph has
    one tile for its shapes. A dtype other than bf16 has a single small tile."""
    if dtype is not torch.bfloat16:
        return _EXACT
    split = split_for(triton.cdiv(rows, 64), columns)
    if batch <= HALF:
        return Tile(64, 16 if batch <= 16 else HALF, split, 4, 4)
    return Tile(128, 2 * HALF, split, 3, 8)


def tile_of_prompts(dtype: torch.dtype) -> Tile:
    """Return the tile for prompts. It is the same for every length, so the first prompt compiles
    its kernel."""
    return Tile(128, 64, 1, 3, 8) if dtype is torch.bfloat16 else _EXACT


def nvfp4_product(
    x: Tensor, weight: NvFp4Halves, output: Tensor | None = None, tile: Tile | None = None
) -> Tensor:
    """Return x times the NVFP4 weight transposed, [B, rows], in x's dtype. x: [B, columns], any row
    stride. output: tensor to write instead of new memory, any row stride. By default the tile is
    from tile_for()."""
    rows, columns = weight.shape
    tile = tile or tile_for(x.shape[0], rows, columns, x.dtype)
    return multiply(partial(_launch, x, weight, tile=tile), x, rows, tile, output)


def _launch(x: Tensor, weight: NvFp4Halves, output: Tensor, tile: Tile) -> None:
    batch, (rows, columns) = len(x), weight.shape
    _nvfp4_product_kernel[
        (triton.cdiv(rows, tile.rows), tile.split, triton.cdiv(batch, tile.batch))
    ](
        x,
        weight.packed,
        weight.groups,
        weight.factors,
        output,
        x.stride(0),
        output.stride(-2),
        batch,
        rows,
        HALF=min(tile.batch, HALF),
        **tile.constants(columns),
        **dependent(x),
        num_warps=tile.warps,
    )


@triton.jit
def _store(output, result, output_stride, share, item, row, batch, rows):
    at = (share * batch + item).to(tl.int64)[:, None] * output_stride + row[None, :]
    inside = (item < batch)[:, None] & (row < rows)[None, :]
    tl.store(output + at, result.to(output.dtype.element_ty), inside)


@triton.jit
def _inputs(x, counts, begin, column, COLUMNS: tl.constexpr):
    if COLUMNS % 128:
        return tl.load(x + begin, counts & (begin + column < COLUMNS)[None, :], 0.0)
    else:
        return tl.load(x + begin, counts, 0.0)


@triton.jit(do_not_specialize=["batch", "rows"])
def _nvfp4_product_kernel(
    x,
    codes,
    groups,
    factors,
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
    DEPENDENT: tl.constexpr,
):
    blocks: tl.constexpr = (COLUMNS + 127) // 128
    share: tl.constexpr = (blocks + SPLIT - 1) // SPLIT
    dtype: tl.constexpr = x.dtype.element_ty
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    # Rows past the matrix read its last one and are not stored.
    kept = tl.minimum(row, rows - 1)
    item = tl.program_id(2) * BATCH + tl.arange(0, HALF)
    column = tl.arange(0, 64)
    group = tl.arange(0, 4)
    of_row = codes + kept.to(tl.int64)[None, :] * (blocks * 64) + column[:, None]
    of_group = groups + kept.to(tl.int64)[None, :] * (blocks * 8) + group[:, None]
    of_item = x + item.to(tl.int64)[:, None] * x_stride + column[None, :]
    of_other = of_item + HALF * x_stride.to(tl.int64)
    counts, others = (item < batch)[:, None], (item + HALF < batch)[:, None]
    if DEPENDENT:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    result = tl.zeros([HALF, ROWS], tl.float32)
    other = tl.zeros([HALF, ROWS], tl.float32)
    first = tl.program_id(1) * share
    for block in tl.range(first, min(first + share, blocks), num_stages=STAGES):
        begin = block * 128
        low, high = grouped_halves(
            tl.load(of_row + block * 64),
            tl.load(of_group + block * 8),
            tl.load(of_group + block * 8 + 4),
            dtype,
        )
        inputs = _inputs(of_item, counts, begin, column, COLUMNS)
        result = tl.dot(inputs, low, result, input_precision="ieee")
        inputs = _inputs(of_item, counts, begin + 64, column, COLUMNS)
        result = tl.dot(inputs, high, result, input_precision="ieee")
        if BATCH > HALF:
            inputs = _inputs(of_other, others, begin, column, COLUMNS)
            other = tl.dot(inputs, low, other, input_precision="ieee")
            inputs = _inputs(of_other, others, begin + 64, column, COLUMNS)
            other = tl.dot(inputs, high, other, input_precision="ieee")
    multiplier, divisor = row_factors(factors, kept, rows)
    result = result * multiplier[None, :] / divisor[None, :]
    _store(output, result, output_stride, tl.program_id(1), item, row, batch, rows)
    if BATCH > HALF:
        other = other * multiplier[None, :] / divisor[None, :]
        _store(output, other, output_stride, tl.program_id(1), item + HALF, row, batch, rows)


def compile_specs() -> list[KernelSpec]:
    """Return the specs to compile the kernels ahead of time, for q, k and v of 35B-A3B at each size
    of batch."""

    def spec(batch: int) -> KernelSpec:
        tile = tile_for(batch, 9216, 2048, torch.bfloat16)
        constants = tile.constants(2048) | {
            "HALF": min(tile.batch, HALF),
            "DEPENDENT": True,
        }
        return KernelSpec.of(
            f"nvfp4_product_{batch}",
            _nvfp4_product_kernel,
            constants,
            tile.warps,
            fp32="factors output" if tile.split > 1 else "factors",
            codes="*u8",
            groups="*fp8e4nv",
        )

    return [spec(batch) for batch in (16, 32, 64)]
