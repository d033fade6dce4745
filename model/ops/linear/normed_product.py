"""Products of a norm with a stored matrix on a GPU, for more rows than `row_product` takes.

With FP8 rows, the norm's kernel quantises too. References: `norm.reference.rms_norm`, and
`phase_product`'s.
"""

from torch import Tensor

from tasuki.model.forward import Activations
from tasuki.model.ops.norm.rms_norm import add_rms_norm, rms_norm
from tasuki.model.weights.matrix import Matrix

from .fp8_norm import fp8_rms_norm
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
        codes, normed = fp8_rms_norm(branch, residual, norm, eps)
        return rows_product(codes, normed, matrix), residual
    if branch is None:
        normed = rms_norm(residual, norm, eps)
    else:
        normed, residual = add_rms_norm(branch, residual, norm, eps)
    return phase_product(normed, matrix, activations), residual
