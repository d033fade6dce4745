"""NVFP4 matrices for kernel tests: of both publishers, every code, groups from tiny to large and of
zeros, tensor scales of one and of two ranges of rows."""

import torch

from tasuki.model.weights.matrix import Matrix
from tasuki.model.weights.quantised_segments import GROUP, NvFp4

from .tensors import noise


def part(rows: int, columns: int, seed: int, *stack: int, divided: bool, ranges: int = 1) -> NvFp4:
    """As it is published. divided: by a global scale, as compressed-tensors does."""
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


def published(parts: tuple[int, ...], columns: int, *stack: int, divided: bool = False) -> Matrix:
    """Parts of so many rows, one below the other."""
    made = [part(n, columns, 10 * i, *stack, divided=divided) for i, n in enumerate(parts)]
    return Matrix(tuple(made))
