"""FP8 segments as kernels of a GPU read them: neighbours of one kind are one segment, whose scales
are one of three grids.

    (128, 128)   blocks of rows and columns, every boundary between parts at a block's
    (1, 128)     of each row apart, where parts or halves of blocks lie otherwise
    (1, width)   one a row: also of what has one scale a tensor, and of what is one block wide

Numbers stay what they were: scales are repeated, never computed.
"""

from collections.abc import Sequence
from itertools import groupby

import torch
from torch import Tensor

from ..fp8 import BLOCK, Fp8
from ..nvfp4 import NvFp4
from ..segment import Segment
from .nvfp4_layout import in_halves

_TILE = 32
"""Half of the rows of a matrix, gate before up, may not cut what a kernel reads of them at once."""


def for_kernels(segments: Sequence[Segment]) -> tuple[Segment, ...]:
    """The same rows in the same order, those of NVFP4 as `nvfp4_layout.py` has them."""
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
    # Bytes, since not every operator knows e4m3.
    dtype = tensors[0].dtype
    codes = [tensor.view(torch.uint8) if dtype.itemsize == 1 else tensor for tensor in tensors]
    return torch.cat(codes, dim=-2).view(dtype)
