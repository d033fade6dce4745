"""Root-mean-square norm of rows, alone or with the residual sum before it.

A program owns one row, keeps it in registers and touches memory once per operand. Reference:
`norm.reference.rms_norm`, applied to x or to x + residual rounded to their dtype.
"""

import triton
import triton.language as tl
from torch import Tensor

from tasuki.utils.triton.instructions import dependent, wait_for_inputs
from tasuki.utils.triton.kernel_spec import KernelSpec

ALONE = 32
"""Number of elements of a thread, measured on an H200."""
WITH_SUM = 8
"""The same for a norm with a sum: one load of 16 bytes of each operand."""


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Return the RMS norm of x, [T, hidden], in x's dtype. x: [T, hidden], any row stride; weight:
    [hidden] float32, as 1 + w."""
    return _launched(x, None, weight, eps, ALONE)


def add_rms_norm(
    branch: Tensor, residual: Tensor, weight: Tensor, eps: float
) -> tuple[Tensor, Tensor]:
    """Add branch and residual. Return (RMS norm of the sum, the sum), both [T, hidden]; the sum
    overwrites `residual`.

    branch [T, hidden], any row stride; residual [T, hidden] contiguous, of the same dtype; weight
    [hidden] float32, 1 + w.
    """
    return _launched(branch, residual, weight, eps, WITH_SUM), residual


def _launched(
    x: Tensor, residual: Tensor | None, weight: Tensor, eps: float, elements: int
) -> Tensor:
    """Launch the norm kernel with `elements` elements for each thread, and return the norm."""
    rows, hidden = x.shape
    normed = x.new_empty(rows, hidden)
    _norm_kernel[(rows,)](
        x,
        x.stride(0),
        residual,
        weight,
        normed,
        eps,
        HIDDEN=hidden,
        BLOCK=triton.next_power_of_2(hidden),
        num_warps=warps_of(hidden, elements),
        **dependent(x),
    )
    return normed


def warps_of(hidden: int, elements: int) -> int:
    """Return the number of warps with which each thread has `elements` elements, within the limit
    of warps."""
    warps: int = triton.next_power_of_2(hidden) // (32 * elements)
    return min(max(warps, 1), 16)


@triton.jit
def _norm_kernel(
    x,
    x_stride,
    residual,
    weight,
    normed,
    eps,
    HIDDEN: tl.constexpr,
    BLOCK: tl.constexpr,
    DEPENDENT: tl.constexpr,
):
    """Write the RMS norm of x, or of x + residual. The sum overwrites the residual."""
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    inside = columns < HIDDEN
    scale = tl.load(weight + columns, mask=inside, other=0.0)
    wait_for_inputs(DEPENDENT)
    values = tl.load(x + row * x_stride + columns, mask=inside, other=0.0).to(tl.float32)
    if residual is not None:
        before = tl.load(residual + row * HIDDEN + columns, mask=inside, other=0.0)
        total = (values + before.to(tl.float32)).to(residual.dtype.element_ty)
        tl.store(residual + row * HIDDEN + columns, total, mask=inside)
        values = total.to(tl.float32)
    mean = tl.sum(values * values, axis=0) / HIDDEN
    result = values * tl.rsqrt(mean + eps) * scale
    tl.store(normed + row * HIDDEN + columns, result.to(normed.dtype.element_ty), mask=inside)


def compile_specs() -> list[KernelSpec]:
    """Return the specs to compile the kernels ahead of time, in the shapes of the 9B model."""
    sizes = {"HIDDEN": 4096, "BLOCK": 4096, "DEPENDENT": True}
    alone, summed = warps_of(4096, ALONE), warps_of(4096, WITH_SUM)
    return [
        KernelSpec.of("rms_norm", _norm_kernel, sizes | {"residual": None}, alone, fp32="weight"),
        KernelSpec.of("add_rms_norm", _norm_kernel, sizes, summed, fp32="weight"),
    ]
