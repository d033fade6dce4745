"""Layout of quantised segments (published matrices as stored) for a GPU's kernels.

FP8: neighbouring segments are merged into one, with scales in one of three grids (rows, columns of
a scale).

    (128, 128)   blocks of rows and columns, if every boundary between parts is a block's
    (1, 128)     a scale for each row and 128 columns, if parts have other boundaries
    (1, width)   a scale for each row, also for a scale per tensor, or a width of one block

The weights stay the same numbers: scales are repeated, never computed.

NVFP4: neighbouring segments are merged too. In every 128 columns, the first 64 are in the low
halves of 64 bytes. The last 64 are in the high halves.

So a load of consecutive bytes is two tiles of consecutive columns, and 16 bytes are two groups of
16. Columns are padded with zeros to whole blocks of 128. Numbers stay the same: codes are moved,
tensor scales are repeated for each row, and none is computed.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

import torch
from torch import Tensor
from torch.nn import functional

from .matrix import Kind, Segment, runs_of
from .quantised_segments import BLOCK, GROUP, Fp8, NvFp4

COLUMNS = 128
"""Number of columns in an NVFP4 block. The codes of its two halves share bytes."""


@dataclass(frozen=True)
class NvFp4Halves(Segment):
    """NVFP4 weights in the kernels' layout. packed [..., out, blocks * 64] uint8: two codes a byte,
    one of each half of a block. groups [..., out, blocks * 8] float8_e4m3fn: scales of 16 columns,
    in column order. factors [..., 2, out] float32: each row's multiplier, then its divisor. width:
    number of columns without padding."""

    packed: Tensor
    groups: Tensor
    factors: Tensor
    width: int

    @property
    def kind(self) -> Kind:
        return Kind.NVFP4

    @property
    def shape(self) -> tuple[int, ...]:
        return (*self.packed.shape[:-1], self.width)

    def last_rows(self, count: int) -> "NvFp4Halves":
        first = self.shape[-2] - count
        factors = self.factors[:, first:].contiguous()
        return NvFp4Halves(self.packed[first:], self.groups[first:], factors, self.width)

    def runs(self, rows: Sequence[range]) -> "NvFp4Halves":
        factors = runs_of(self.factors.transpose(0, 1), rows).transpose(0, 1).contiguous()
        packed, groups = runs_of(self.packed, rows), runs_of(self.groups, rows)
        return NvFp4Halves(packed, groups, factors, self.width)

    def rows(self, begin: int, end: int) -> Tensor:
        low, high = self.packed[begin:end] & 15, self.packed[begin:end] >> 4
        halves = [half.view(end - begin, -1, 1, COLUMNS // 2) for half in (low, high)]
        codes = torch.cat(halves, dim=2).view(end - begin, -1)
        published = NvFp4(
            codes[:, ::2] | codes[:, 1::2] << 4,
            self.groups[begin:end],
            self.factors[0, begin:end],
            self.factors[1, begin:end],
        )
        return published.rows(0, end - begin)[:, : self.width]


def in_halves(parts: Sequence[NvFp4]) -> NvFp4Halves:
    """Return the rows of all parts, in order, in the kernels' NVFP4 layout."""
    return NvFp4Halves(
        torch.cat([_packed(part.packed) for part in parts], dim=-2),
        torch.cat([_groups(part.groups).view(torch.uint8) for part in parts], dim=-2).view(
            torch.float8_e4m3fn
        ),
        torch.cat([_factors(part) for part in parts], dim=-1),
        parts[0].shape[-1],
    )


def _packed(published: Tensor) -> Tensor:
    filled = functional.pad(published, (0, -published.shape[-1] % (COLUMNS // 2)))
    codes = torch.stack([filled & 15, filled >> 4], dim=-1).flatten(-2)
    halves = codes.view(*codes.shape[:-1], -1, 2, COLUMNS // 2)
    packed: Tensor = halves[..., 0, :] | halves[..., 1, :] << 4
    return packed.flatten(-2)


def _groups(published: Tensor) -> Tensor:
    filled = functional.pad(
        published.view(torch.uint8), (0, -published.shape[-1] % (COLUMNS // GROUP))
    )
    return filled.view(torch.float8_e4m3fn)


def _factors(part: NvFp4) -> Tensor:
    out = part.shape[-2]
    of_rows = [
        given.repeat_interleave(out // given.shape[-1], -1)
        for given in (part.multiplier, part.divisor)
    ]
    return torch.stack(of_rows, dim=-2)


_TILE = 32
"""Number of matrix rows read by a kernel together. The boundary between gate and up, in the middle
of a matrix, must be at a multiple of it."""


def for_kernels(segments: Sequence[Segment]) -> tuple[Segment, ...]:
    """Return the segments in the layout of the GPU's kernels, merged and with the same rows in the
    same order. NVFP4 rows get the layout of `in_halves`."""
    found: list[Segment] = []
    for _, group in groupby(segments, key=lambda segment: segment.kind):
        same = list(group)
        fp8 = [segment for segment in same if isinstance(segment, Fp8)]
        nvfp4 = [segment for segment in same if isinstance(segment, NvFp4)]
        if fp8:
            found.append(_merged(fp8))
        elif nvfp4:
            found.append(in_halves(nvfp4))
        else:
            found.extend(same)
    return tuple(found)


def _merged(parts: Sequence[Fp8]) -> Fp8:
    values = _joined([part.values for part in parts])
    rows, width = values.shape[-2:]
    scales = [part.scales for part in parts]
    grid = (BLOCK, BLOCK)
    if all(part.shape[-1] == 1 for part in scales):
        scales, grid = [_of_each_row(part) for part in parts], (1, width)
    elif not _is_aligned(parts, rows):
        scales, grid = [_of_each_row(part) for part in parts], (1, BLOCK)
    return Fp8(values, _joined(scales), *grid, parts[0].of)


def _is_aligned(parts: Sequence[Fp8], rows: int) -> bool:
    blocks = all((part.block_rows, part.block_columns) == (BLOCK, BLOCK) for part in parts)
    return blocks and not rows % _TILE and all(part.shape[-2] % BLOCK == 0 for part in parts[:-1])


def _of_each_row(part: Fp8) -> Tensor:
    repeated = part.scales.repeat_interleave(part.block_rows, -2)
    return repeated[..., : part.shape[-2], :].contiguous()


def _joined(tensors: Sequence[Tensor]) -> Tensor:
    if len(tensors) == 1:
        return tensors[0]
    # Move bytes, because not every operator knows e4m3.
    dtype = tensors[0].dtype
    codes = [tensor.view(torch.uint8) if dtype.itemsize == 1 else tensor for tensor in tensors]
    return torch.cat(codes, dim=-2).view(dtype)
