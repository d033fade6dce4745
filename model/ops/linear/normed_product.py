"""Products of a norm with a stored matrix on a GPU, for more rows than `row_product` takes.

The norm's kernel quantises too, where a product takes FP8 rows. References:
`norm.reference.rms_norm`, and `phase_product`'s.
"""

from torch import Tensor

from tasuki.model.forward import Activations
from tasuki.model.ops.norm.rms_norm import add_rms_norm, rms_norm
from tasuki.model.weights.matrix import Matrix

from .fp8_activations import Fp8Rows
from .fp8_library import coded_product, has_coded_product
from .fp8_norm import fp8_rms_codes, fp8_rms_norm
from .fp8_rows import has_fp8, rows_product
from .phase_product import phase_product


def normed_product(
    branch: Tensor | None,
    residual: Tensor,
    norm: Tensor,
    eps: float,
    matrix: Matrix,
    activations: Activations,
) -> tuple[Tensor, Tensor]:
    """Norm branch + residual, and multiply it by the matrix [out, in] transposed, with activations
    of this form. Return (product [T, out], next residual). The residual may be overwritten. branch
    None: the residual alone is normed. norm [hidden] float32, 1 + w."""
    if activations is Activations.ROWS and has_fp8(matrix):
        codes, normed = _coded_norm(branch, residual, norm, eps, matrix)
        # Without plain rows, the residual gives the dtype alone.
        return rows_product(codes, residual if normed is None else normed, matrix), residual
    if activations is Activations.LIBRARY and has_coded_product(matrix, residual.dtype):
        codes, normed = _coded_norm(branch, residual, norm, eps, matrix)
        return coded_product(codes, normed, matrix), residual
    if branch is None:
        normed = rms_norm(residual, norm, eps)
    else:
        normed, residual = add_rms_norm(branch, residual, norm, eps)
    return phase_product(normed, matrix, activations), residual


def _coded_norm(
    branch: Tensor | None, residual: Tensor, norm: Tensor, eps: float, matrix: Matrix
) -> tuple[Fp8Rows, Tensor | None]:
    """Return the norm of branch + residual as FP8 rows, and the norm itself, if the matrix has
    plain rows too."""
    if len(matrix.segments) == 1:
        return fp8_rms_codes(branch, residual, norm, eps), None
    return fp8_rms_norm(branch, residual, norm, eps)
