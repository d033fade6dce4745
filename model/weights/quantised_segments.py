"""Segments of quantised weights: FP8 and NVFP4.

FP8 weights: e4m3 values, and a scale for each block, each row, or the whole matrix.

    w = value * scale, both in float32

The only error is the rounding of this product. A scale published as `weight_scale_inv` multiplies
too, in spite of its name.

NVFP4 weights: e2m1 values, two a byte, an e4m3 scale (group) for each 16 columns of a row, and a
float32 scale for the tensor.

    ModelOpt            w = (value * group) * weight_scale_2
    compressed-tensors  w = (value * group) / weight_global_scale

value * group is exact in float32, so there is only one rounding. The two formulas stay separate,
since neither number's reciprocal is exact.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from .matrix import Kind, Segment, WeightsError, runs_of

BLOCK = 128
"""Number of rows, and of columns, in a block of the published block format. Blocks at the edges are
smaller."""


@dataclass(frozen=True)
class Fp8(Segment):
    """FP8 weights with their scales. values [..., out, in]: float8_e4m3fn without NaN; scales [...,
    grid rows, grid columns]: float32, finite. Row i, column j has the scale scales[i // block_rows,
    j // block_columns]."""

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

    def runs(self, rows: Sequence[range]) -> "Fp8":
        values, unit = runs_of(self.values, rows), self.block_rows
        if self.scales.shape[-2] == 1:
            return replace(self, values=values)
        if any(run.start % unit or run.stop % unit for run in rows):
            raise WeightsError(
                f"rows of a matrix {list(self.shape)} are stored in another order, and {unit} of "
                "them have one scale: serve the checkpoint in BF16"
            )
        scales = [range(run.start // unit, run.stop // unit) for run in rows]
        return replace(self, values=values, scales=runs_of(self.scales, scales))

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
    """Return float8_e4m3fn codes of any shape as float32, exactly and in new memory. A table of all
    256 values is used, because PyTorch's own conversion takes fifteen times as long on a CPU."""
    table = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).to(torch.float32)
    index = codes.contiguous().view(torch.uint8).reshape(-1).to(torch.int32)
    return table.to(codes.device).index_select(0, index).view(codes.shape)


GROUP = 16
"""Number of neighbouring NVFP4 columns with a common scale."""
_MAGNITUDES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)


@dataclass(frozen=True)
class NvFp4(Segment):
    """NVFP4 weights with their scales.

    packed: [..., out, in / 2] uint8, two e2m1 codes a byte, even columns in the low half. groups:
    [..., out, in / 16] float8_e4m3fn without NaN, scales of 16 columns. multiplier, divisor: [...,
    n] float32, finite, one for each of n equal ranges of rows; the divisor is not 0. One of the two
    is 1, depending on the publisher.
    """

    packed: Tensor
    groups: Tensor
    multiplier: Tensor
    divisor: Tensor

    @property
    def kind(self) -> Kind:
        return Kind.NVFP4

    @property
    def shape(self) -> tuple[int, ...]:
        *front, columns = self.packed.shape
        return (*front, 2 * columns)

    def runs(self, rows: Sequence[range]) -> "NvFp4":
        if self.multiplier.shape[-1] > 1:
            raise WeightsError(
                f"a matrix {list(self.shape)} has {self.multiplier.shape[-1]} scales for its rows, "
                "and is stored in another order: serve the checkpoint in BF16"
            )
        packed, groups = runs_of(self.packed, rows), runs_of(self.groups, rows)
        return replace(self, packed=packed, groups=groups)

    def rows(self, begin: int, end: int) -> Tensor:
        count, width = self.shape
        codes = self.packed[begin:end].reshape(-1).to(torch.int32)
        pairs = _pairs(self.packed.device).index_select(0, codes)
        values = pairs.view(torch.float32).view(end - begin, width // GROUP, GROUP)
        values.mul_(e4m3_values(self.groups[begin:end]).unsqueeze(-1))
        owner = torch.arange(begin, end) // (count // self.multiplier.shape[-1])
        owner = owner.to(self.packed.device)
        values.mul_(self.multiplier[owner].view(-1, 1, 1))
        values.div_(self.divisor[owner].view(-1, 1, 1))
        return values.view(end - begin, width)


def _pairs(device: torch.device) -> Tensor:
    """Return a table [256] of float64. Entry b has the bits of two float32 numbers: the two e2m1
    values of byte b, in column order."""
    halves = torch.tensor([*_MAGNITUDES, *(-value for value in _MAGNITUDES)])
    byte = torch.arange(256)
    both = torch.stack([halves[byte & 15], halves[byte >> 4]], dim=-1)
    return both.view(torch.float64).view(256).to(device)
