"""Quantised matrices for kernel tests, as publishers store them: FP8 with every grid of scales, and
NVFP4 of both publishers. Sizes from tiny to large, every code, with blocks and groups of zeros."""

from typing import Any

import torch
from torch import Tensor

from tasuki.model.weights.kernel_layout import for_kernels
from tasuki.model.weights.matrix import Kind, Matrix
from tasuki.model.weights.quantised_segments import BLOCK, GROUP, Fp8, NvFp4

from .tensors import noise


def fp8_part(kind: Kind, rows: int, columns: int, seed: int, *stack: int) -> Fp8:
    """Return an FP8 part as published. Scales differ by up to 2^6, and the first of several is
    0."""
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


def nvfp4_part(
    rows: int, columns: int, seed: int, *stack: int, divided: bool, ranges: int = 1
) -> NvFp4:
    """Return an NVFP4 part as published. divided: by a global scale, as compressed-tensors does.
    ranges: number of row ranges with their own tensor scale, one or two."""
    generator = torch.Generator().manual_seed(seed)
    packed = torch.randint(0, 256, (*stack, rows, columns // 2), generator=generator)
    groups = torch.exp2(noise(seed + 1, *stack, rows, columns // GROUP).clamp(-8, 8))
    groups[..., 0, 0], groups[..., -1, -1] = 0, 448
    groups[..., -1, 0] = 2**-9
    scale = torch.exp2(noise(seed + 2, *stack, ranges).clamp(-4, 2)) / 50 / columns**0.5
    one = torch.ones_like(scale)
    return NvFp4(
        packed.to(torch.uint8),
        groups.to(torch.float8_e4m3fn),
        one if divided else scale,
        scale.reciprocal() if divided else one,
    )


def published(
    kind: Kind, parts: tuple[int, ...], columns: int, *stack: int, divided: bool = False
) -> Matrix:
    """Return parts of so many rows, one below the other. divided: of NVFP4, as in nvfp4_part()."""
    seeded = [(rows, columns, 10 * number, *stack) for number, rows in enumerate(parts)]
    if kind is Kind.NVFP4:
        return Matrix(tuple(nvfp4_part(*each, divided=divided) for each in seeded))
    return Matrix(tuple(fp8_part(kind, *each) for each in seeded))


def laid_out(matrix: Matrix, device: torch.device) -> Matrix:
    """Return the matrix in the kernels' layout."""
    return Matrix(for_kernels(matrix.to(device).segments))


def on_device(matrix: Matrix, device: torch.device) -> Any:
    """Return one segment in the kernels' layout."""
    (weight,) = laid_out(matrix, device).segments
    return weight


def numbers(matrix: Matrix) -> Tensor:
    """Return [..., out, in] float32, the reference of every kernel."""
    if len(matrix.shape) == 2:
        return matrix.dequantised(torch.float32)
    return torch.stack(
        [matrix[index].dequantised(torch.float32) for index in range(matrix.shape[0])]
    )


def relative(got: Tensor, want: Tensor) -> float:
    """Return the relative error of the whole result."""
    got, want = got.cpu().float(), want.float()
    return float((got - want).norm() / want.norm())
