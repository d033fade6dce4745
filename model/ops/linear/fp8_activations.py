"""Quantisation of activations to e4m3 codes and scales, computed for every row (W8A8 of prompts).

scale = max(largest magnitude, 1e-10) / 448, code = nearest e4m3 of value * (1 / scale). A scale
covers 128 columns, or a whole row for weights with scales of whole rows. The quantised rows are x,
or silu(gate) * up computed in the same pass. Rows are padded to a multiple of 4 with zeros, and
scales of one group of columns are side by side, as the library's product needs. Both divisions
round to nearest, so every machine makes the same codes. Each group is divided once, not each value:
the plain `/` of a GPU is wrong in its last bits, and gives another code near ties. References:
`reference.quantised_rows`, behind `reference.swiglu`'s activation.
"""

from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from tasuki.utils.triton.instructions import dependent, wait_for_inputs
from tasuki.utils.triton.kernel_spec import KernelSpec

from .fp8_scales import GROUP

_ROWS = 4
_LEAST_BLOCK, _BLOCK = 1024, 2048
_WARPS = 4


@dataclass(frozen=True)
class Fp8Rows:
    """Quantised rows of activations. values [R, columns]: e4m3 codes, `count` of the rows valid;
    scales [R, groups]: float32, in memory by row or by group."""

    values: Tensor
    scales: Tensor
    count: int


def quantised(x: Tensor) -> Fp8Rows:
    """Return x [T, columns], any row stride, quantised to e4m3 with a scale for each 128 columns of
    a row. Scales of one group of columns are neighbours in memory."""
    rows, columns = x.shape
    result = empty_rows(x, rows, columns)
    _launch(_group_kernel, x, result, columns)
    return result


def quantised_swiglu(gate_up: Tensor) -> Fp8Rows:
    """Compute silu(gate) * up from gate_up [T, 2 * columns] (gate first, any row stride). Return
    the result, quantised like quantised()."""
    rows, columns = gate_up.shape[0], gate_up.shape[1] // 2
    result = empty_rows(gate_up, rows, columns)
    _launch(_coded_swiglu_kernel, gate_up, result, columns)
    return result


def quantised_whole(x: Tensor) -> Fp8Rows:
    """Return x [T, columns], any row stride, quantised to e4m3 with one scale per row."""
    rows, columns = x.shape
    padded = -(-rows // _ROWS) * _ROWS
    values = torch.empty(padded, columns, dtype=torch.float8_e4m3fn, device=x.device)
    scales = torch.empty(padded, 1, dtype=torch.float32, device=x.device)
    _whole_kernel[(padded,)](
        x,
        values,
        scales,
        x.stride(0),
        rows,
        COLUMNS=columns,
        BLOCK=triton.next_power_of_2(columns),
        num_warps=2 * _WARPS,
        **dependent(x),
    )
    return Fp8Rows(values, scales, rows)


def empty_rows(x: Tensor, rows: int, columns: int) -> Fp8Rows:
    padded, groups = -(-rows // _ROWS) * _ROWS, -(-columns // GROUP)
    values = torch.empty(padded, columns, dtype=torch.float8_e4m3fn, device=x.device)
    scales = torch.empty(groups, padded, dtype=torch.float32, device=x.device)
    return Fp8Rows(values, scales.t(), rows)


def _launch(kernel: Any, x: Tensor, result: Fp8Rows, columns: int) -> None:
    padded = len(result.values)
    block = min(max(triton.next_power_of_2(columns), _LEAST_BLOCK), _BLOCK)
    kernel[(padded, triton.cdiv(columns, block))](
        x,
        result.values,
        result.scales,
        x.stride(0),
        result.count,
        padded,
        COLUMNS=columns,
        BLOCK=block,
        num_warps=_WARPS,
        **dependent(x),
    )


@triton.jit
def store_groups(
    value, values, scales, row, begin, padded, COLUMNS: tl.constexpr, BLOCK: tl.constexpr
):
    """Quantise and store one block of a row: value [BLOCK] float32 of the columns from `begin` on,
    with a scale for each 128 columns."""
    GROUPS: tl.constexpr = BLOCK // 128
    grouped = tl.reshape(value, [GROUPS, 128])
    scale = tl.div_rn(tl.maximum(tl.max(tl.abs(grouped), axis=1), 1e-10), 448.0)
    codes = tl.reshape(grouped * tl.div_rn(1.0, scale)[:, None], [BLOCK]).to(tl.float8e4nv)
    column = begin + tl.arange(0, BLOCK)
    tl.store(values + row * COLUMNS + column, codes, column < COLUMNS)
    group = begin // 128 + tl.arange(0, GROUPS)
    tl.store(scales + group.to(tl.int64) * padded + row, scale, group * 128 < COLUMNS)


@triton.jit(do_not_specialize=["rows", "padded"])
def _group_kernel(
    x,
    values,
    scales,
    x_stride,
    rows,
    padded,
    COLUMNS: tl.constexpr,
    BLOCK: tl.constexpr,
    DEPENDENT: tl.constexpr,
):
    row, begin = tl.program_id(0).to(tl.int64), tl.program_id(1) * BLOCK
    column = begin + tl.arange(0, BLOCK)
    wait_for_inputs(DEPENDENT)
    inside = (column < COLUMNS) & (row < rows)
    value = tl.load(x + row * x_stride + column, inside, 0.0).to(tl.float32)
    store_groups(value, values, scales, row, begin, padded, COLUMNS, BLOCK)


@triton.jit(do_not_specialize=["rows", "padded"])
def _coded_swiglu_kernel(
    gate_up,
    values,
    scales,
    x_stride,
    rows,
    padded,
    COLUMNS: tl.constexpr,
    BLOCK: tl.constexpr,
    DEPENDENT: tl.constexpr,
):
    row, begin = tl.program_id(0).to(tl.int64), tl.program_id(1) * BLOCK
    column = begin + tl.arange(0, BLOCK)
    start = gate_up + row * x_stride + column
    wait_for_inputs(DEPENDENT)
    inside = (column < COLUMNS) & (row < rows)
    gate = tl.load(start, inside, 0.0).to(tl.float32)
    up = tl.load(start + COLUMNS, inside, 0.0).to(tl.float32)
    value = gate * tl.sigmoid(gate) * up
    store_groups(value, values, scales, row, begin, padded, COLUMNS, BLOCK)


@triton.jit(do_not_specialize=["rows"])
def _whole_kernel(
    x,
    values,
    scales,
    x_stride,
    rows,
    COLUMNS: tl.constexpr,
    BLOCK: tl.constexpr,
    DEPENDENT: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    wait_for_inputs(DEPENDENT)
    inside = (column < COLUMNS) & (row < rows)
    value = tl.load(x + row * x_stride + column, inside, 0.0).to(tl.float32)
    scale = tl.div_rn(tl.maximum(tl.max(tl.abs(value), axis=0), 1e-10), 448.0)
    codes = (value * tl.div_rn(1.0, scale)).to(tl.float8e4nv)
    tl.store(values + row * COLUMNS + column, codes, column < COLUMNS)
    tl.store(scales + row, scale)


def compile_specs() -> list[KernelSpec]:
    """Return the specs to compile the kernels ahead of time, in the shapes of the 9B model."""

    def spec(name: str, kernel: Any, columns: int, block: int, warps: int) -> KernelSpec:
        sizes = {"COLUMNS": columns, "BLOCK": block, "DEPENDENT": True}
        return KernelSpec.of(
            f"fp8_activations_{name}", kernel, sizes, warps, fp32="scales", values="*fp8e4nv"
        )

    return [
        spec("alone", _group_kernel, 4096, _BLOCK, _WARPS),
        spec("swiglu", _coded_swiglu_kernel, 12288, _BLOCK, _WARPS),
        spec("whole", _whole_kernel, 4096, 4096, 2 * _WARPS),
    ]
