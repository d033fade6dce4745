"""Products of few rows, limited by reading weights, for every storage format of a matrix. If a
kernel for it exists, the norm before the product and SwiGLU after it are in the same launch.

bf16 goes to gemv.py, FP8 to fp8_gemv.py. A matrix of several formats gets a product for each, after
one norm. The precision is that of `Activations.MODEL`.
"""

from torch import Tensor

from tasuki.model.forward import Activations
from tasuki.model.ops.norm.rms_norm import add_rms_norm, rms_norm
from tasuki.model.weights.matrix import Matrix, Plain
from tasuki.model.weights.quantised_segments import Fp8

from .fp8_gemv import fp8_gemv, norm_fp8_gemv, norm_fp8_gemv_swiglu
from .gemv import gemv, norm_gemv, norm_gemv_swiglu
from .phase_product import phase_product
from .swiglu import swiglu


def row_product(x: Tensor, matrix: Matrix) -> Tensor:
    """Return x times the matrix transposed, [B, out], in x's dtype. x: [B, in] contiguous, few
    rows."""
    match matrix.segments:
        case [Plain(values)]:
            return gemv(x, values)
        case [Fp8() as weight]:
            return fp8_gemv(x, weight)
    return phase_product(x, matrix, Activations.MODEL)


def normed_row_product(
    branch: Tensor | None, residual: Tensor, norm: Tensor, eps: float, matrix: Matrix
) -> tuple[Tensor, Tensor]:
    """Norm branch + residual, and multiply it by the matrix, as `gemv.norm_gemv` does. Return
    (product [B, out], next residual). The residual may be overwritten."""
    match matrix.segments:
        case [Plain(values)]:
            return norm_gemv(branch, residual, norm, eps, values)
        case [Fp8() as weight]:
            return norm_fp8_gemv(branch, residual, norm, eps, weight)
        case [Fp8() as weight, Plain(tail)]:
            return norm_fp8_gemv(branch, residual, norm, eps, weight, tail)
    if branch is None:
        normed = rms_norm(residual, norm, eps)
    else:
        normed, residual = add_rms_norm(branch, residual, norm, eps)
    return phase_product(normed, matrix, Activations.MODEL), residual


def normed_row_swiglu(
    branch: Tensor, residual: Tensor, norm: Tensor, eps: float, gate_up: Matrix
) -> tuple[Tensor, Tensor]:
    """Norm branch + residual, multiply it by gate_up, and apply SwiGLU, as `gemv.norm_gemv_swiglu`
    does. Return (activations [B, width], next residual). The residual may be overwritten."""
    match gate_up.segments:
        case [Plain(values)]:
            return norm_gemv_swiglu(branch, residual, norm, eps, values)
        case [Fp8() as weight]:
            return norm_fp8_gemv_swiglu(branch, residual, norm, eps, weight)
    normed, residual = add_rms_norm(branch, residual, norm, eps)
    return swiglu(phase_product(normed, gate_up, Activations.MODEL)), residual
