"""Products with matrices in any storage format, and the SwiGLU feed-forward, in PyTorch."""

import torch
from torch import Tensor
from torch.nn import functional

from tasuki.model.weights.matrix import Matrix


class Products:
    """Products of activations with stored matrices."""

    def product(self, x: Tensor, matrix: Matrix) -> Tensor:
        """Return x [T, in] times matrix [out, in] transposed: [T, out] in x's dtype."""
        return product(x, matrix)

    def swiglu(self, x: Tensor, gate_up: Matrix, down: Matrix) -> Tensor:
        """Compute the SwiGLU feed-forward of x [T, hidden]. Return [T, hidden]. gate_up [2 *
        intermediate, hidden], gate rows first; down [hidden, intermediate]."""
        return swiglu(x, gate_up, down)


EXACT = Products()
"""Products without quantised activations."""


def product(x: Tensor, matrix: Matrix) -> Tensor:
    """Return x [T, in] times matrix [out, in] transposed: [T, out] in x's dtype.

    Quantised rows are dequantised in float32, some at a time, so little memory is needed besides
    the result.
    """
    parts = [functional.linear(x, piece) for piece in matrix.pieces(x.dtype)]
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim=-1)


def swiglu(x: Tensor, gate_up: Matrix, down: Matrix) -> Tensor:
    """Compute the SwiGLU feed-forward of x [T, hidden]. Return [T, hidden]. gate_up [2 *
    intermediate, hidden], gate rows first; down [hidden, intermediate]."""
    gate, up = product(x, gate_up).chunk(2, dim=-1)
    return product(functional.silu(gate).mul_(up), down)


def quantised_rows(x: Tensor, group: int) -> Tensor:
    """Quantise x [T, columns] to e4m3 with a scale for each `group` columns of a row, and return
    the resulting numbers as float32. Only tests of kernels use it."""
    rows, columns = x.shape
    padded = functional.pad(x.float(), (0, -columns % group)).view(rows, -1, group)
    scales = padded.abs().amax(-1, keepdim=True).clamp(min=1e-10) / 448
    codes = (padded * scales.reciprocal()).to(torch.float8_e4m3fn)
    return (codes.float() * scales).view(rows, -1)[:, :columns]
