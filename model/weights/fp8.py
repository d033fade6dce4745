"""FP8 weights: e4m3 values, and a scale for each block, each row, or the whole matrix.

    w = value * scale, both in float32

which is exact but for the product's one rounding. A scale that is published as `weight_scale_inv`
multiplies too, whatever its name says.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from .e4m3 import e4m3_values
from .segment import Kind, Segment

BLOCK = 128
"""Rows and columns of a block of the published block format; blocks at the edges are smaller."""


@dataclass(frozen=True)
class Fp8(Segment):
    """values [..., out, in] float8_e4m3fn without NaN; scales [..., grid rows, grid columns]
    float32, finite: that of (i, j) is scales[i // block_rows, j // block_columns]."""

    values: Tensor
    scales: Tensor
    block_rows: int
    block_columns: int
    of: Kind

    @property
    def kind(self) -> Kind:
        return self.of

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.values.shape)

    def rows(self, begin: int, end: int) -> Tensor:
        columns = self.values.shape[-1]
        scales = self.scales[begin // self.block_rows : (end - 1) // self.block_rows + 1]
        if scales.shape[-1] > 1:
            scales = scales.repeat_interleave(self.block_columns, -1)[:, :columns]
        values = e4m3_values(self.values[begin:end])
        first = begin // self.block_rows * self.block_rows
        owner = torch.arange(begin - first, end - first) // self.block_rows
        return values.mul_(scales[owner.to(scales.device)])
