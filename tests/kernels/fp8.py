"""FP8 matrices for kernel tests: of every grid of scales, from tiny to large, with blocks of
zeros."""

import torch
from torch import Tensor

from tasuki.model.weights.kernel_layout import for_kernels
from tasuki.model.weights.matrix import Kind, Matrix
from tasuki.model.weights.quantised_segments import BLOCK, Fp8

from .tensors import noise


def part(kind: Kind, rows: int, columns: int, seed: int, *stack: int) -> Fp8:
    """As it is published. Scales differ by up to 2^6, and the first of several is 0."""
    grids = {
        Kind.FP8_BLOCK: (BLOCK, BLOCK),
        Kind.FP8_CHANNEL: (1, columns),
        Kind.FP8_TENSOR: (rows, columns),
    }
    tall, wide = grids[kind]
    codes = (noise(seed, *stack, rows, columns) * 20).clamp(-448, 448).to(torch.float8_e4m3fn)
    size = (*stack, -(-rows // tall), -(-columns // wide))
    scales = torch.exp2(noise(seed + 1, *size).clamp(-4, 2)) / 20 / columns**0.5
    if size[-2:] != (1, 1):
        scales[..., 0, 0] = 0
    return Fp8(codes, scales, tall, wide, kind)


def published(kind: Kind, parts: tuple[int, ...], columns: int, *stack: int) -> Matrix:
    """Parts of so many rows, one below the other."""
    return Matrix(tuple(part(kind, rows, columns, 10 * i, *stack) for i, rows in enumerate(parts)))


def on_device(matrix: Matrix, device: torch.device) -> Fp8:
    """One segment, as kernels read it."""
    (weight,) = for_kernels(matrix.to(device).segments)
    assert isinstance(weight, Fp8)
    return weight


def numbers(matrix: Matrix) -> Tensor:
    """[..., out, in] float32, what every kernel is held against."""
    if len(matrix.shape) == 2:
        return matrix.dequantised(torch.float32)
    return torch.stack(
        [matrix[index].dequantised(torch.float32) for index in range(matrix.shape[0])]
    )


def relative(got: Tensor, want: Tensor) -> float:
    """Of the whole result."""
    got, want = got.cpu().float(), want.float()
    return float((got - want).norm() / want.norm())
