"""Products of a few rows with a weight matrix, with the steps before and after fused in.

A decode step at batch 1 reads every weight once, so each of these kernels streams weights. A
program loads whole runs of a few weight rows together. Three forms of one stream, with weights
[rows, columns] as published:

- `gemv`: x W^T;
- `norm_gemv`: norm(branch + residual) W^T, the sum kept as the next residual;
- `norm_gemv_swiglu`: silu(n G^T) * (n U^T) of the same norm n, gate rows G above up rows U.

References: `torch.nn.functional.linear` after `norm.reference.rms_norm`, and `reference.swiglu`.

The first weights are loaded before the kernel waits for the kernel before it (instructions.py).
Weights depend on nothing, and a short kernel mostly costs the filling of the memory pipes. Every
program computes the norm again: its inputs are small and stay in the caches. All arithmetic is
float32.
"""

from dataclasses import dataclass
from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from tasuki.utils.triton.instructions import dependent
from tasuki.utils.triton.kernel_spec import KernelSpec

MOST_ROWS = 1
"""Largest number of rows of x worth these kernels. On an H200, 9B's products were 9 to 33% faster
than cuBLAS at one row, and no faster at two."""


@dataclass(frozen=True)
class Stream:
    """Order in which a program reads weights: `rows` rows of the matrix, `block` columns at a time.
    warps: warps of a program."""

    rows: int
    block: int
    warps: int


# The fastest of 36 shapes over 9B's matrices on an H200: 3.7 to 4.3 TB/s of weights. For long
# columns, a shape half as long is 2% faster in 9B. It takes 1.3 times as long in 27B and 122B.
_SHORT = Stream(8, 2048, 8)
_LONG = Stream(4, 2048, 4)
_SHORT_COLUMNS = 4096
_NORMED = Stream(4, 4096, 4)
_SWIGLU = Stream(2, 4096, 4)
# For more columns than the shapes above read at once, as in 27B. Its products then come to 97 and
# 99% of the rate of a copy instead of 77 and 73%. A second block mostly past the matrix costs as
# much as a whole one.
_WIDE = Stream(2, 8192, 4)


def gemv(x: Tensor, weight: Tensor, stream: Stream | None = None) -> Tensor:
    """Return x times the weight transposed, [B, rows], in x's dtype. x: [B, columns] contiguous,
    worth it for B up to MOST_ROWS; weight: [rows, columns] contiguous. By default the columns
    decide the stream."""
    rows, columns = weight.shape
    stream = stream or (_SHORT if columns <= _SHORT_COLUMNS else _LONG)
    output = x.new_empty(x.shape[0], rows)
    _product_kernel[(triton.cdiv(rows, stream.rows),)](
        x,
        weight,
        output,
        rows,
        BATCH=x.shape[0],
        COLUMNS=columns,
        ROWS=stream.rows,
        BLOCK=_block(stream, columns),
        **dependent(x),
        num_warps=stream.warps,
    )
    return output


def norm_gemv(
    branch: Tensor | None,
    residual: Tensor,
    norm: Tensor,
    eps: float,
    weight: Tensor,
    stream: Stream | None = None,
) -> tuple[Tensor, Tensor]:
    """Norm branch + residual, and multiply it by the weight transposed. Return (product [B, rows],
    next residual [B, columns]), in residual's dtype.

    branch, residual [B, columns] contiguous; without a branch the residual itself is normed, and
    returned. norm [columns] float32, 1 + w; weight as for gemv.
    """
    stream = stream or _normed_stream(_NORMED, weight.shape[1])
    return _normed(branch, residual, norm, eps, weight, weight.shape[0], False, stream)


def norm_gemv_swiglu(
    branch: Tensor,
    residual: Tensor,
    norm: Tensor,
    eps: float,
    gate_up: Tensor,
    stream: Stream | None = None,
) -> tuple[Tensor, Tensor]:
    """Norm branch + residual, multiply it by gate_up, and apply SwiGLU. Return (activations [B,
    width], next residual). gate_up: [2 * width, columns] contiguous. Other arguments: see
    norm_gemv()."""
    stream = stream or _normed_stream(_SWIGLU, gate_up.shape[1])
    return _normed(branch, residual, norm, eps, gate_up, gate_up.shape[0] // 2, True, stream)


def _normed_stream(usual: Stream, columns: int) -> Stream:
    return _WIDE if columns > usual.block and columns % usual.block else usual


def _normed(
    branch: Tensor | None,
    residual: Tensor,
    norm: Tensor,
    eps: float,
    weight: Tensor,
    rows: int,
    swiglu: bool,
    stream: Stream,
) -> tuple[Tensor, Tensor]:
    batch, columns = residual.shape
    output = residual.new_empty(batch, rows)
    # Not in place, because every program reads the old residual.
    total = residual if branch is None else residual.new_empty(batch, columns)
    _norm_product_kernel[(triton.cdiv(rows, stream.rows),)](
        branch,
        residual,
        norm,
        weight,
        output,
        total,
        eps,
        rows,
        BATCH=batch,
        COLUMNS=columns,
        ROWS=stream.rows,
        BLOCK=_block(stream, columns),
        SWIGLU=swiglu,
        **dependent(residual),
        num_warps=stream.warps,
    )
    return output, total


def _block(stream: Stream, columns: int) -> int:
    return min(int(triton.next_power_of_2(columns)), stream.block)


@triton.jit
def weight_tile(weight, row, rows, begin, COLUMNS: tl.constexpr, BLOCK: tl.constexpr):
    """Return a tile of weights [ROWS, BLOCK] from column `begin` on; zero past the matrix."""
    column = begin + tl.arange(0, BLOCK)
    inside = (row < rows)[:, None] & (column < COLUMNS)[None, :]
    at = row.to(tl.int64)[:, None] * COLUMNS + column[None, :]
    return tl.load(weight + at, inside, 0.0)


@triton.jit(do_not_specialize=["rows"])
def _product_kernel(
    x,
    weight,
    output,
    rows,
    BATCH: tl.constexpr,
    COLUMNS: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    DEPENDENT: tl.constexpr,
):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    first = weight_tile(weight, row, rows, 0, COLUMNS, BLOCK)
    if DEPENDENT:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    for item in tl.static_range(BATCH):
        products = tl.zeros([ROWS, BLOCK], tl.float32)
        for begin in tl.static_range(0, COLUMNS, BLOCK):
            column = begin + tl.arange(0, BLOCK)
            tile = first
            if begin > 0:
                tile = weight_tile(weight, row, rows, begin, COLUMNS, BLOCK)
            value = tl.load(x + item * COLUMNS + column, column < COLUMNS, 0.0)
            products += tile.to(tl.float32) * value.to(tl.float32)[None, :]
        result = tl.sum(products, axis=1)
        tl.store(output + item * rows + row, result.to(output.dtype.element_ty), row < rows)


@triton.jit
def residual_sum(branch, residual, item, begin, COLUMNS: tl.constexpr, BLOCK: tl.constexpr):
    """Return branch + residual for one block of row `item`, rounded to their dtype like the
    residual stream."""
    column = begin + tl.arange(0, BLOCK)
    inside = column < COLUMNS
    value = tl.load(residual + item * COLUMNS + column, inside, 0.0)
    if branch is not None:
        added = tl.load(branch + item * COLUMNS + column, inside, 0.0)
        value = (value.to(tl.float32) + added.to(tl.float32)).to(value.dtype)
    return value


@triton.jit(do_not_specialize=["rows"])
def _norm_product_kernel(
    branch,
    residual,
    norm,
    weight,
    output,
    total,
    eps,
    rows,
    BATCH: tl.constexpr,
    COLUMNS: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    SWIGLU: tl.constexpr,
    DEPENDENT: tl.constexpr,
):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    up_weight = weight + rows.to(tl.int64) * COLUMNS
    first = weight_tile(weight, row, rows, 0, COLUMNS, BLOCK)
    if SWIGLU:
        first_up = weight_tile(up_weight, row, rows, 0, COLUMNS, BLOCK)
    if DEPENDENT:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    for item in tl.static_range(BATCH):
        squares = tl.zeros([BLOCK], tl.float32)
        for begin in tl.static_range(0, COLUMNS, BLOCK):
            value = residual_sum(branch, residual, item, begin, COLUMNS, BLOCK).to(tl.float32)
            squares += value * value
        root = tl.rsqrt(tl.sum(squares, axis=0) / COLUMNS + eps)
        products = tl.zeros([ROWS, BLOCK], tl.float32)
        ups = tl.zeros([ROWS, BLOCK], tl.float32)
        for begin in tl.static_range(0, COLUMNS, BLOCK):
            column = begin + tl.arange(0, BLOCK)
            inside = column < COLUMNS
            stored = residual_sum(branch, residual, item, begin, COLUMNS, BLOCK)
            if branch is not None:  # noqa: SIM102 (decided when the kernel is compiled)
                if tl.program_id(0) == 0:
                    tl.store(total + item * COLUMNS + column, stored, inside)
            scale = tl.load(norm + column, inside, 0.0)
            # The reference rounds in the same way between norm and product.
            value = (stored.to(tl.float32) * root * scale).to(stored.dtype).to(tl.float32)
            tile = first
            if begin > 0:
                tile = weight_tile(weight, row, rows, begin, COLUMNS, BLOCK)
            products += tile.to(tl.float32) * value[None, :]
            if SWIGLU:
                tile = first_up
                if begin > 0:
                    tile = weight_tile(up_weight, row, rows, begin, COLUMNS, BLOCK)
                ups += tile.to(tl.float32) * value[None, :]
        result = tl.sum(products, axis=1)
        if SWIGLU:
            result = result * tl.sigmoid(result) * tl.sum(ups, axis=1)
        tl.store(output + item * rows + row, result.to(output.dtype.element_ty), row < rows)


def compile_specs() -> list[KernelSpec]:
    """Return the specs to compile the kernels ahead of time, for the shapes of 9B at batch 1."""

    def spec(
        name: str, kernel: Any, stream: Stream, columns: int, fp32: str = "", **more: object
    ) -> KernelSpec:
        tile = {"COLUMNS": columns, "ROWS": stream.rows, "BLOCK": _block(stream, columns)}
        constants = {"BATCH": 1, "DEPENDENT": True} | tile | more
        return KernelSpec.of(f"gemv_{name}", kernel, constants, stream.warps, fp32=fp32)

    return [
        spec("down", _product_kernel, _LONG, 12288),
        spec("out_proj", _product_kernel, _SHORT, 4096),
        spec("norm_in_proj", _norm_product_kernel, _NORMED, 4096, "norm", SWIGLU=False),
        spec("norm_gate_up", _norm_product_kernel, _SWIGLU, 4096, "norm", SWIGLU=True),
    ]
