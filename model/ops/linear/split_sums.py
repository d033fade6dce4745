"""Addition of a product's partial sums [SPLIT, B, rows] float32, one from each program over its
share of the columns. Optionally silu(gate) * up follows.

A product with a narrow output is shared out among programs over its inner dimension, so that tiles
are tall and all multiprocessors read. The parts are added in one order, for any batch. References:
`sum` over the first dimension, and `reference.swiglu`'s activation.
"""

import triton
import triton.language as tl
from torch import Tensor

from tasuki.utils.triton.instructions import dependent, wait_for_inputs
from tasuki.utils.triton.kernel_spec import KernelSpec

_BLOCK = 512
_WARPS = 4


def joined(parts: Tensor, output: Tensor) -> None:
    """Add up the partial sums `parts` [SPLIT, B, rows]. Write the result into output [B, rows], any
    row stride."""
    _launch(parts, output, swiglu=False)


def joined_swiglu(parts: Tensor, output: Tensor) -> None:
    """Add up the partial sums `parts` [SPLIT, B, rows], gate rows first. Write silu(gate) * up into
    output [B, rows / 2], any row stride."""
    _launch(parts, output, swiglu=True)


def _launch(parts: Tensor, output: Tensor, *, swiglu: bool) -> None:
    split, batch, _ = parts.shape
    width = output.shape[1]
    _split_sums_kernel[(triton.cdiv(width, _BLOCK), batch)](
        parts,
        output,
        output.stride(0),
        batch,
        WIDTH=width,
        SPLIT=split,
        SWIGLU=swiglu,
        BLOCK=_BLOCK,
        num_warps=_WARPS,
        **dependent(parts),
    )


@triton.jit
def _sum(parts, item, batch, column, ROWS: tl.constexpr, WIDTH: tl.constexpr, SPLIT: tl.constexpr):
    total = tl.zeros(column.shape, tl.float32)
    for part in tl.static_range(SPLIT):
        at = parts + (part * batch + item).to(tl.int64) * ROWS + column
        total += tl.load(at, column < WIDTH, 0.0)
    return total


@triton.jit(do_not_specialize=["batch"])
def _split_sums_kernel(
    parts,
    output,
    output_stride,
    batch,
    WIDTH: tl.constexpr,
    SPLIT: tl.constexpr,
    SWIGLU: tl.constexpr,
    BLOCK: tl.constexpr,
    DEPENDENT: tl.constexpr,
):
    item = tl.program_id(1)
    column = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    wait_for_inputs(DEPENDENT)
    if SWIGLU:
        gate = _sum(parts, item, batch, column, 2 * WIDTH, WIDTH, SPLIT)
        up = _sum(parts + WIDTH, item, batch, column, 2 * WIDTH, WIDTH, SPLIT)
        result = gate * tl.sigmoid(gate) * up
    else:
        result = _sum(parts, item, batch, column, WIDTH, WIDTH, SPLIT)
    at = output + item.to(tl.int64) * output_stride + column
    tl.store(at, result.to(output.dtype.element_ty), column < WIDTH)


def compile_specs() -> list[KernelSpec]:
    """Return the specs to compile the kernels ahead of time, in the shapes of the 9B model."""

    def spec(name: str, width: int, split: int, swiglu: bool) -> KernelSpec:
        sizes = {"WIDTH": width, "SPLIT": split, "SWIGLU": swiglu, "BLOCK": _BLOCK}
        return KernelSpec.of(
            f"split_sums_{name}",
            _split_sums_kernel,
            sizes | {"DEPENDENT": True},
            _WARPS,
            fp32="parts",
        )

    return [spec("alone", 4096, 8, False), spec("swiglu", 12288, 2, True)]
