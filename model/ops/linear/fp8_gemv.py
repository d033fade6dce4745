"""Products of a few rows with FP8 weights as stored, with the steps before and after fused in. It
is like `gemv.py`, for weights of one byte with bf16 or float32 activations (W8A16).

The order of work is the same: a program loads whole runs of a few weight rows. The first run is
loaded before the kernel waits for the kernel before it. e4m3 is exact in float32. A scale is folded
into the activations of its 128 columns in float32, so only activations are rounded. Plain rows
below the FP8 rows (a tail: b and a of in_proj) are programs of the same launch. References:
`reference.product` after `norm.reference.rms_norm`, and `reference.swiglu`.
"""

from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from tasuki.model.weights.quantised_segments import Fp8
from tasuki.utils.triton.instructions import dependent
from tasuki.utils.triton.kernel_spec import KernelSpec

from .fp8_scales import GROUP, row_scales, run_sums, scale_sizes, scaled_products
from .gemv import Stream, residual_sum, weight_tile

# The fastest of 16 over each matrix of 9B on an H200, or within 3% of it. A program has more rows
# than for bf16: as many bytes of weights then share the cost of an input's column.
_SHORT = Stream(4, 2048, 4)
_LONG = Stream(8, 4096, 8)
_SHORT_COLUMNS = 4096
_NORMED = Stream(16, 1024, 4)
# In 35B-A3B.
_NORMED_SHORT = Stream(8, 1024, 4)
_NORMED_SHORT_COLUMNS = 2048
_SWIGLU = Stream(8, 2048, 4)
_TAIL_SHARE = 4
"""Divisor of the number of rows for a program of the tail (plain rows), because its numbers are
twice as long as FP8 codes."""


def fp8_gemv(x: Tensor, weight: Fp8, stream: Stream | None = None) -> Tensor:
    """Return x times the FP8 weight transposed, [B, rows], in x's dtype. x: [B, columns]
    contiguous; weight: [rows, columns], laid out for kernels. By default the columns decide the
    stream."""
    stream = stream or (_SHORT if weight.shape[1] <= _SHORT_COLUMNS else _LONG)
    output = x.new_empty(x.shape[0], weight.shape[0])
    _launch(None, x, None, 0.0, weight, None, output, None, False, stream)
    return output


def norm_fp8_gemv(
    branch: Tensor | None,
    residual: Tensor,
    norm: Tensor,
    eps: float,
    weight: Fp8,
    tail: Tensor | None = None,
    stream: Stream | None = None,
) -> tuple[Tensor, Tensor]:
    """Norm branch + residual, and multiply it by the FP8 weight and the plain tail. Return (product
    [B, rows + tail rows], next residual [B, columns]), in residual's dtype.

    branch, residual [B, columns] contiguous; without a branch the residual itself is normed, and
    returned. norm [columns] float32, 1 + w; tail [tail rows, columns] contiguous in residual's
    dtype.
    """
    rows = weight.shape[0] + (0 if tail is None else tail.shape[0])
    output = residual.new_empty(residual.shape[0], rows)
    total = residual if branch is None else residual.new_empty(residual.shape)
    is_short = weight.shape[1] <= _NORMED_SHORT_COLUMNS
    stream = stream or (_NORMED_SHORT if is_short else _NORMED)
    _launch(branch, residual, norm, eps, weight, tail, output, total, False, stream)
    return output, total


def norm_fp8_gemv_swiglu(
    branch: Tensor,
    residual: Tensor,
    norm: Tensor,
    eps: float,
    gate_up: Fp8,
    stream: Stream = _SWIGLU,
) -> tuple[Tensor, Tensor]:
    """Norm branch + residual, multiply it by gate_up [2 * width, columns], and apply SwiGLU. Return
    (activations [B, width], next residual). Other arguments: see norm_fp8_gemv()."""
    output = residual.new_empty(residual.shape[0], gate_up.shape[0] // 2)
    total = residual.new_empty(residual.shape)
    _launch(branch, residual, norm, eps, gate_up, None, output, total, True, stream)
    return output, total


def _launch(
    branch: Tensor | None,
    residual: Tensor,
    norm: Tensor | None,
    eps: float,
    weight: Fp8,
    tail: Tensor | None,
    output: Tensor,
    total: Tensor | None,
    swiglu: bool,
    stream: Stream,
) -> None:
    batch, columns = residual.shape
    rows = weight.shape[0] // 2 if swiglu else weight.shape[0]
    tail_rows = 0 if tail is None else tail.shape[0]
    programs = triton.cdiv(rows, stream.rows) + triton.cdiv(tail_rows, _tail_tile(stream))
    _fp8_gemv_kernel[(programs,)](
        branch,
        residual,
        norm,
        weight.values,
        weight.scales,
        tail,
        output,
        total,
        eps,
        rows,
        tail_rows,
        BATCH=batch,
        COLUMNS=columns,
        ROWS=stream.rows,
        TAIL_ROWS=_tail_tile(stream),
        BLOCK=_block(stream, columns),
        SWIGLU=swiglu,
        **scale_sizes(weight),
        **dependent(residual),
        num_warps=stream.warps,
    )


def _tail_tile(stream: Stream) -> int:
    """Return the number of rows for a program of the tail (plain rows)."""
    return max(1, stream.rows // _TAIL_SHARE)


def _block(stream: Stream, columns: int) -> int:
    return max(min(int(triton.next_power_of_2(columns)), stream.block), GROUP)


@triton.jit
def _root(branch, residual, norm, item, eps, COLUMNS: tl.constexpr, BLOCK: tl.constexpr):
    """Return the norm's factor for one row, one over the root mean square. Without a norm nothing
    is read, and the factor is 1."""
    if norm is None:
        return 1.0
    else:
        squares = tl.zeros([BLOCK], tl.float32)
        for begin in tl.static_range(0, COLUMNS, BLOCK):
            value = residual_sum(branch, residual, item, begin, COLUMNS, BLOCK).to(tl.float32)
            squares += value * value
        return tl.rsqrt(tl.sum(squares, axis=0) / COLUMNS + eps)


@triton.jit
def _inputs(
    branch, residual, norm, root, total, item, begin, COLUMNS: tl.constexpr, BLOCK: tl.constexpr
):
    """Return one block of the product's inputs, [BLOCK] float32, normed and rounded as in the
    reference. The first program also stores the sum branch + residual."""
    stored = residual_sum(branch, residual, item, begin, COLUMNS, BLOCK)
    column = begin + tl.arange(0, BLOCK)
    if branch is not None:  # noqa: SIM102 (decided when the kernel is compiled)
        if tl.program_id(0) == 0:
            tl.store(total + item * COLUMNS + column, stored, column < COLUMNS)
    value = stored.to(tl.float32)
    if norm is not None:
        scale = tl.load(norm + column, column < COLUMNS, 0.0)
        value = (value * root * scale).to(stored.dtype).to(tl.float32)
    return value


@triton.jit(do_not_specialize=["rows", "tail_rows"])
def _fp8_gemv_kernel(
    branch,
    residual,
    norm,
    values,
    scales,
    tail,
    output,
    total,
    eps,
    rows,
    tail_rows,
    BATCH: tl.constexpr,
    COLUMNS: tl.constexpr,
    ROWS: tl.constexpr,
    TAIL_ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    SWIGLU: tl.constexpr,
    SCALE_ROWS: tl.constexpr,
    SCALE_COLUMNS: tl.constexpr,
    DEPENDENT: tl.constexpr,
):
    RUN: tl.constexpr = 16
    # The tail's programs come first. They load nothing before their wait, and would end last.
    tail_tiles = (tail_rows + TAIL_ROWS - 1) // TAIL_ROWS
    if tail is not None:  # noqa: SIM102 (decided when the kernel is compiled)
        if tl.program_id(0) < tail_tiles:
            row = tl.program_id(0) * TAIL_ROWS + tl.arange(0, TAIL_ROWS)
            if DEPENDENT:
                tl.extra.cuda.gdc_launch_dependents()
                tl.extra.cuda.gdc_wait()
            for item in tl.static_range(BATCH):
                root = _root(branch, residual, norm, item, eps, COLUMNS, BLOCK)
                plain = tl.zeros([TAIL_ROWS, BLOCK], tl.float32)
                for begin in tl.static_range(0, COLUMNS, BLOCK):
                    tile = weight_tile(tail, row, tail_rows, begin, COLUMNS, BLOCK)
                    value = _inputs(
                        branch, residual, norm, root, total, item, begin, COLUMNS, BLOCK
                    )
                    plain += tile.to(tl.float32) * value[None, :]
                at = output + item * (rows + tail_rows) + rows + row
                tl.store(at, tl.sum(plain, axis=1).to(output.dtype.element_ty), row < tail_rows)
            return
    first = (tl.program_id(0) - tail_tiles) * ROWS
    row = first + tl.arange(0, ROWS)
    up_values = values + rows.to(tl.int64) * COLUMNS
    first_tile = weight_tile(values, row, rows, 0, COLUMNS, BLOCK)
    if SWIGLU:
        first_up = weight_tile(up_values, row, rows, 0, COLUMNS, BLOCK)
    if DEPENDENT:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    for item in tl.static_range(BATCH):
        root = _root(branch, residual, norm, item, eps, COLUMNS, BLOCK)
        products = tl.zeros([ROWS, BLOCK // RUN], tl.float32)
        ups = tl.zeros([ROWS, BLOCK // RUN], tl.float32)
        for begin in tl.static_range(0, COLUMNS, BLOCK):
            value = _inputs(branch, residual, norm, root, total, item, begin, COLUMNS, BLOCK)
            tile = first_tile
            if begin > 0:
                tile = weight_tile(values, row, rows, begin, COLUMNS, BLOCK)
            found = scaled_products(
                tile, value, scales, first, rows, begin, ROWS, BLOCK, COLUMNS, SCALE_ROWS,
                SCALE_COLUMNS,
            )  # fmt: skip
            products += run_sums(found, RUN)
            if SWIGLU:
                tile = first_up
                if begin > 0:
                    tile = weight_tile(up_values, row, rows, begin, COLUMNS, BLOCK)
                found = scaled_products(
                    tile, value, scales, rows + first, 2 * rows, begin, ROWS, BLOCK, COLUMNS,
                    SCALE_ROWS, SCALE_COLUMNS,
                )  # fmt: skip
                ups += run_sums(found, RUN)
        result = tl.sum(products, axis=1)
        if SCALE_COLUMNS >= COLUMNS:
            result *= row_scales(scales, first, rows, ROWS)
        if SWIGLU:
            up = tl.sum(ups, axis=1)
            if SCALE_COLUMNS >= COLUMNS:
                up *= row_scales(scales, rows + first, 2 * rows, ROWS)
            result = result * tl.sigmoid(result) * up
        at = output + item * (rows + tail_rows) + row
        tl.store(at, result.to(output.dtype.element_ty), row < rows)


def compile_specs() -> list[KernelSpec]:
    """Return the specs to compile the kernels ahead of time, for the shapes of 9B at batch 1, block
    scales."""

    def spec(name: str, stream: Stream, columns: int, **given: Any) -> KernelSpec:
        sizes = {"COLUMNS": columns, "ROWS": stream.rows, "BLOCK": _block(stream, columns)}
        sizes["TAIL_ROWS"] = _tail_tile(stream)
        scale = {"SCALE_ROWS": GROUP, "SCALE_COLUMNS": GROUP}
        absent = {"branch": None, "norm": None, "tail": None, "total": None, "SWIGLU": False}
        constants = {"BATCH": 1, "DEPENDENT": True} | sizes | scale | absent | given
        kept = {name: value for name, value in constants.items() if value is not _GIVEN}
        fp32 = "scales norm" if "norm" not in kept else "scales"
        return KernelSpec.of(
            f"fp8_gemv_{name}", _fp8_gemv_kernel, kept, stream.warps, fp32=fp32, values="*fp8e4nv"
        )

    normed = dict.fromkeys(("branch", "norm", "total"), _GIVEN)
    return [
        spec("down", _LONG, 12288),
        spec("out_proj", _SHORT, 4096),
        spec("norm_in_proj", _NORMED, 4096, **normed, tail=_GIVEN),
        spec("norm_gate_up", _SWIGLU, 4096, **normed, SWIGLU=True),
    ]


_GIVEN = object()
