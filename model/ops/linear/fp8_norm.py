"""Root-mean-square norm of rows as FP8 rows, alone or beside plain rows, in one pass.

A norm is rounded to its dtype before it is quantised, so its codes are those of
`fp8_activations.quantised` of the norm. References: `norm.reference.rms_norm`, and
`fp8_rows_reference.coded` of its result. The number of warps is that of `norm.rms_norm`, so both
add up a row's squares in one order.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from tasuki.model.ops.norm.rms_norm import ALONE, WITH_SUM, warps_of
from tasuki.utils.triton.instructions import dependent, wait_for_inputs
from tasuki.utils.triton.kernel_spec import KernelSpec

from .fp8_activations import Fp8Rows, empty_rows, store_groups
from .fp8_scales import GROUP


def fp8_rms_norm(
    branch: Tensor | None, residual: Tensor, weight: Tensor, eps: float
) -> tuple[Fp8Rows, Tensor]:
    """Return the RMS norm of branch + residual as FP8 rows, and in residual's dtype, [T, hidden].
    The sum overwrites `residual`. branch [T, hidden]: any row stride; None: the residual alone is
    normed. residual [T, hidden]: contiguous; weight [hidden] float32, 1 + w."""
    normed = torch.empty_like(residual)
    return _launched(branch, residual, weight, normed, eps), normed


def fp8_rms_codes(branch: Tensor | None, residual: Tensor, weight: Tensor, eps: float) -> Fp8Rows:
    """Return the FP8 rows of fp8_rms_norm() alone. The arguments are the same."""
    return _launched(branch, residual, weight, None, eps)


def _launched(
    branch: Tensor | None, residual: Tensor, weight: Tensor, normed: Tensor | None, eps: float
) -> Fp8Rows:
    """Launch the norm kernel, and return the FP8 rows. normed: receives the norm, if given."""
    rows, hidden = residual.shape
    codes = empty_rows(residual, rows, hidden)
    padded, block = len(codes.values), max(triton.next_power_of_2(hidden), GROUP)
    _fp8_norm_kernel[(padded,)](
        branch,
        0 if branch is None else branch.stride(0),
        residual,
        weight,
        normed,
        codes.values,
        codes.scales,
        eps,
        rows,
        padded,
        HIDDEN=hidden,
        BLOCK=block,
        num_warps=warps_of(block, ALONE if branch is None else WITH_SUM),
        **dependent(residual),
    )
    return codes


@triton.jit(do_not_specialize=["rows", "padded"])
def _fp8_norm_kernel(
    branch,
    branch_stride,
    residual,
    weight,
    normed,
    codes,
    scales,
    eps,
    rows,
    padded,
    HIDDEN: tl.constexpr,
    BLOCK: tl.constexpr,
    DEPENDENT: tl.constexpr,
):
    """Write the norm, if asked for, and its FP8 rows, zeros for the rows that fill up to `padded`.
    The sum overwrites the residual."""
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    inside = (columns < HIDDEN) & (row < rows)
    scale = tl.load(weight + columns, columns < HIDDEN, 0.0)
    wait_for_inputs(DEPENDENT)
    before = tl.load(residual + row * HIDDEN + columns, inside, 0.0)
    values = before.to(tl.float32)
    if branch is not None:
        added = tl.load(branch + row * branch_stride + columns, inside, 0.0).to(tl.float32)
        total = (added + values).to(residual.dtype.element_ty)
        tl.store(residual + row * HIDDEN + columns, total, inside)
        values = total.to(tl.float32)
    mean = tl.sum(values * values, axis=0) / HIDDEN
    result = (values * tl.rsqrt(mean + eps) * scale).to(residual.dtype.element_ty)
    if normed is not None:
        tl.store(normed + row * HIDDEN + columns, result, inside)
    store_groups(result.to(tl.float32), codes, scales, row, 0, padded, HIDDEN, BLOCK)


def compile_specs() -> list[KernelSpec]:
    """Return the specs to compile the kernels ahead of time, in the shapes of the 9B model."""
    sizes = {"HIDDEN": 4096, "BLOCK": 4096, "DEPENDENT": True}
    warps, fp32 = warps_of(4096, WITH_SUM), "weight scales"

    def spec(name: str, **absent: None) -> KernelSpec:
        constants = {**sizes, **absent}
        return KernelSpec.of(name, _fp8_norm_kernel, constants, warps, fp32=fp32, codes="*fp8e4nv")

    return [spec("fp8_norm"), spec("fp8_norm_codes", normed=None)]
