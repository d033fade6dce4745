"""Products of activations rounded in other ways, to compare what a rounding costs.

FP8 rows have a scale for each 128 columns: the largest magnitude over 448, in float32, or the next
power of two above it (UE8M0), as DeepGEMM wants it of a server such as vLLM. Weights have scales of
one kind too. Sums are in float32.
"""

from dataclasses import replace

import torch
from torch import Tensor
from torch.nn import functional

from tasuki.model.ops.linear.fp8_rows_reference import BLOCK, coded
from tasuki.model.ops.linear.reference import Products, product
from tasuki.model.weights.matrix import Matrix
from tasuki.model.weights.quantised_segments import Fp8, e4m3_values

_MOST = 448
"""Largest e4m3 number."""


class FloatScales(Products):
    """Products of FP8 rows with float32 scales with FP8 weights as stored."""

    def product(self, x: Tensor, matrix: Matrix) -> Tensor:
        rounded = self.rows(x).to(x.dtype)
        parts = [
            product(rounded, Matrix((self.weight(segment),)))
            if isinstance(segment, Fp8)
            else product(x, Matrix((segment,)))
            for segment in matrix.segments
        ]
        return torch.cat(parts, dim=-1)

    def swiglu(self, x: Tensor, gate_up: Matrix, down: Matrix) -> Tensor:
        gate, up = self.product(x, gate_up).chunk(2, dim=-1)
        return self.product(functional.silu(gate).mul_(up), down)

    def rows(self, x: Tensor) -> Tensor:
        """Return the numbers of x [T, columns] as FP8 rows, float32."""
        codes, scales = coded(x)
        return e4m3_values(codes) * scales.repeat_interleave(BLOCK, 1)[:, : x.shape[1]]

    def weight(self, weight: Fp8) -> Fp8:
        """Return the weight to multiply by."""
        return weight


class PowerScales(FloatScales):
    """Products of FP8 rows whose scales are powers of two, with FP8 weights as stored."""

    def rows(self, x: Tensor) -> Tensor:
        columns = x.shape[1]
        groups = functional.pad(x.float(), (0, -columns % BLOCK)).view(len(x), -1, BLOCK)
        scales = _power_above(groups.abs().amax(-1, keepdim=True))
        codes = (groups / scales).to(torch.float8_e4m3fn)
        return (e4m3_values(codes) * scales).view(len(x), -1)[:, :columns]


class PowerScalesOfBoth(PowerScales):
    """Products of such rows with weights quantised anew, whose scales are powers of two too."""

    def __init__(self) -> None:
        self._made: dict[int, Fp8] = {}

    def weight(self, weight: Fp8) -> Fp8:
        key = weight.values.data_ptr()
        if key not in self._made:
            self._made[key] = requantised(weight)
        return self._made[key]


def requantised(weight: Fp8) -> Fp8:
    """Return a weight of blocks with scales that are powers of two, quantised from its numbers."""
    rows, columns = weight.shape
    numbers = weight.rows(0, rows)
    tall, wide = weight.block_rows, weight.block_columns
    padded = functional.pad(numbers, (0, -columns % wide, 0, -rows % tall))
    blocks = padded.unflatten(0, (-1, tall)).unflatten(2, (-1, wide))
    scales = _power_above(blocks.abs().amax((1, 3), keepdim=True))
    codes = (blocks / scales).flatten(2, 3).flatten(0, 1)[:rows, :columns]
    return replace(
        weight,
        values=codes.contiguous().to(torch.float8_e4m3fn),
        scales=scales[:, 0, :, 0].contiguous(),
    )


def _power_above(magnitudes: Tensor) -> Tensor:
    """Return the least powers of two that are at least magnitudes / 448."""
    return torch.exp2((magnitudes.clamp(min=1e-10) / _MOST).log2().ceil())
