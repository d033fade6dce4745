"""NVFP4 segments as kernels of a GPU read them: neighbours are one segment, and of every 128
columns the first 64 lie in the low halves of 64 bytes, the last 64 in the high ones.

So a load of consecutive bytes is two tiles of consecutive columns, and 16 bytes are two groups of
16. Columns are filled up to whole blocks of 128 by zeros. Numbers stay what they were: codes are
moved, and tensor scales repeated a row, never computed.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from ..nvfp4 import GROUP, NvFp4
from ..segment import Kind, Segment

COLUMNS = 128
"""Of a block, whose halves share bytes."""


@dataclass(frozen=True)
class NvFp4Halves(Segment):
    """packed [..., out, blocks * 64] uint8; groups [..., out, blocks * 8] float8_e4m3fn, in the
    order of columns; factors [..., 2, out] float32: what a row is multiplied by, then what it is
    divided by. width: columns that there are."""

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
    """The rows of all parts in order."""
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
