"""Partial rotary embedding, neox halves.

The positions of text are equal in all mrope sections, which makes mrope plain rotary.
"""

import torch
from torch import Tensor


def rotary_table(positions: Tensor, rotary_dim: int, theta: float) -> tuple[Tensor, Tensor]:
    """cos and sin, each [T, 1, rotary_dim / 2] float32, of positions [T]."""
    exponents = torch.arange(0, rotary_dim, 2, device=positions.device).float() / rotary_dim
    angles = positions.float()[:, None, None] * (1.0 / theta**exponents)
    return angles.cos(), angles.sin()


def apply_rotary(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """x [T, heads, head_dim]; its first rotary_dim elements are turned, the rest pass."""
    half = cos.shape[-1]
    first, second, rest = x.split_with_sizes([half, half, x.shape[-1] - 2 * half], dim=-1)
    turned = (first * cos - second * sin, second * cos + first * sin)
    return torch.cat([part.to(x.dtype) for part in turned] + [rest], dim=-1)
