"""FP8 weights: e4m3 values, and a scale for each block, each row, or the whole matrix.

    w = value * scale, both in float32

which is exact but for the product's one rounding. A scale that is published as `weight_scale_inv`
multiplies too, whatever its name says.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

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

    def last_rows(self, count: int) -> "Segment":
        first = self.shape[-2] - count
        scales = self.scales
        if len(scales) > 1:
            if first % self.block_rows:
                return super().last_rows(count)
            scales = scales[first // self.block_rows :]
        return replace(self, values=self.values[first:], scales=scales)

    def rows(self, begin: int, end: int) -> Tensor:
        columns = self.values.shape[-1]
        scales = self.scales[begin // self.block_rows : (end - 1) // self.block_rows + 1]
        if scales.shape[-1] > 1:
            scales = scales.repeat_interleave(self.block_columns, -1)[:, :columns]
        values = e4m3_values(self.values[begin:end])
        first = begin // self.block_rows * self.block_rows
        owner = torch.arange(begin - first, end - first) // self.block_rows
        return values.mul_(scales[owner.to(scales.device)])


def e4m3_values(codes: Tensor) -> Tensor:
    """float8_e4m3fn of any shape, as float32 in new memory; every one of them is exact. By a table
    of all 256: on a CPU PyTorch's own conversion takes fifteen times as long."""
    table = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).to(torch.float32)
    index = codes.contiguous().view(torch.uint8).reshape(-1).to(torch.int32)
    return table.to(codes.device).index_select(0, index).view(codes.shape)
