"""Grouped products with FP8 experts against a loop over them: experts of no rows, of more than a
tile, rows past the last end."""

import pytest
import torch
from torch import Tensor

from tasuki.model.ops.moe.expert_tiles import Tile
from tasuki.model.ops.moe.fp8_grouped import grouped_fp8
from tasuki.model.weights.matrix import Kind

from .fp8 import numbers, on_device, published, relative
from .tensors import noise

pytestmark = pytest.mark.usefixtures("poisoned_empty")
COUNTS = (3, 0, 18, 1, 0)
TILE = Tile(32, 16, 2, 4)
MATRICES = [
    (Kind.FP8_BLOCK, (128, 128), 128),
    (Kind.FP8_BLOCK, (128, 32), 256),
    (Kind.FP8_BLOCK, (24, 24), 200),
    (Kind.FP8_CHANNEL, (48,), 128),
    (Kind.FP8_TENSOR, (40,), 256),
    (Kind.FP8_BLOCK, (64,), 16),
]
each_matrix = pytest.mark.parametrize(("kind", "parts", "columns"), MATRICES)


def naive(pairs: Tensor, matrices: Tensor) -> Tensor:
    split = pairs.split(COUNTS)
    return torch.cat([rows @ matrix.t() for rows, matrix in zip(split, matrices, strict=True)])


@each_matrix
def test_rows_in_bf16(
    kind: Kind, parts: tuple[int, ...], columns: int, device: torch.device
) -> None:
    matrix = published(kind, parts, columns, len(COUNTS))
    ends = torch.tensor(COUNTS).cumsum(0).int()
    pairs = noise(3, sum(COUNTS) + 5, columns).bfloat16()
    pairs[sum(COUNTS) :] = torch.nan
    got = grouped_fp8(
        pairs.to(device), None, on_device(matrix, device), ends.to(device), TILE
    ).cpu()
    assert relative(got[: sum(COUNTS)], naive(pairs[: sum(COUNTS)].float(), numbers(matrix))) < 1e-2
    assert bool(got[sum(COUNTS) :].isnan().all())


@each_matrix
def test_rows_as_codes(
    kind: Kind, parts: tuple[int, ...], columns: int, device: torch.device
) -> None:
    matrix = published(kind, parts, columns, len(COUNTS))
    ends = torch.tensor(COUNTS).cumsum(0).int()
    codes = (noise(3, sum(COUNTS), columns) * 50).to(torch.float8_e4m3fn)
    scales = torch.rand(sum(COUNTS), -(-columns // 128))
    got = grouped_fp8(
        codes.to(device), scales.to(device), on_device(matrix, device), ends.to(device), TILE
    )
    exact = codes.float() * scales.repeat_interleave(128, 1)[:, :columns]
    assert relative(got, naive(exact, numbers(matrix))) < 1e-2
