"""Grouped products with quantised experts compared with a loop over them: experts without rows,
with more than a tile, rows past the last end."""

import pytest
import torch
from torch import Tensor

from tasuki.model.ops.moe.expert_tiles import Tile
from tasuki.model.ops.moe.fp8_grouped import grouped_fp8
from tasuki.model.ops.moe.nvfp4_grouped import grouped_nvfp4
from tasuki.model.weights.matrix import Kind

from .published import numbers, on_device, published, relative
from .tensors import noise

pytestmark = pytest.mark.usefixtures("poisoned_empty")
COUNTS = (3, 0, 18, 1, 0)
ENDS = torch.tensor(COUNTS).cumsum(0).int()
PAIRS = sum(COUNTS)
TILE = Tile(32, 16, 2, 4)
FP8_MATRICES = [
    (Kind.FP8_BLOCK, (128, 128), 128),
    (Kind.FP8_BLOCK, (128, 32), 256),
    (Kind.FP8_BLOCK, (24, 24), 200),
    (Kind.FP8_CHANNEL, (48,), 128),
    (Kind.FP8_TENSOR, (40,), 256),
    (Kind.FP8_BLOCK, (64,), 16),
]
NVFP4_MATRICES = [
    (Kind.NVFP4, (64, 64), 128),
    (Kind.NVFP4, (24, 24), 208),
    (Kind.NVFP4, (130,), 256),
]


def naive(pairs: Tensor, matrices: Tensor) -> Tensor:
    split = pairs.split(COUNTS)
    return torch.cat([rows @ matrix.t() for rows, matrix in zip(split, matrices, strict=True)])


@pytest.mark.parametrize(("kind", "parts", "columns"), FP8_MATRICES + NVFP4_MATRICES)
def test_rows_in_bf16(
    kind: Kind, parts: tuple[int, ...], columns: int, device: torch.device
) -> None:
    matrix = published(kind, parts, columns, len(COUNTS))
    weight = on_device(matrix, device)
    pairs = noise(3, PAIRS + 5, columns).bfloat16()
    pairs[PAIRS:] = torch.nan
    if kind is Kind.NVFP4:
        got = grouped_nvfp4(pairs.to(device), weight, ENDS.to(device), TILE).cpu()
    else:
        got = grouped_fp8(pairs.to(device), None, weight, ENDS.to(device), TILE).cpu()
    assert relative(got[:PAIRS], naive(pairs[:PAIRS].float(), numbers(matrix))) < 1e-2
    assert bool(got[PAIRS:].isnan().all())


@pytest.mark.parametrize(("kind", "parts", "columns"), FP8_MATRICES)
def test_rows_as_codes(
    kind: Kind, parts: tuple[int, ...], columns: int, device: torch.device
) -> None:
    matrix = published(kind, parts, columns, len(COUNTS))
    weight = on_device(matrix, device)
    codes = (noise(3, PAIRS, columns) * 50).to(torch.float8_e4m3fn)
    scales = torch.rand(PAIRS, -(-columns // 128))
    got = grouped_fp8(codes.to(device), scales.to(device), weight, ENDS.to(device), TILE)
    exact = codes.float() * scales.repeat_interleave(128, 1)[:, :columns]
    assert relative(got, naive(exact, numbers(matrix))) < 1e-2
