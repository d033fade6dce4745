"""Products with NVFP4 weights against the CPU path on what was published: of both publishers, sizes
that fill no tile and no block."""

import pytest
import torch
from torch.nn import functional

from tasuki.model.forward import Phase
from tasuki.model.ops.linear.fp8_product import Tile
from tasuki.model.ops.linear.nvfp4_product import nvfp4_product
from tasuki.model.ops.linear.phase_product import phase_product
from tasuki.model.ops.linear.row_product import normed_row_product, normed_row_swiglu, row_product
from tasuki.model.ops.norm.reference import rms_norm
from tasuki.model.weights.kernel_layout import NvFp4Halves, for_kernels
from tasuki.model.weights.matrix import Matrix, Plain

from .fp8 import numbers, relative
from .nvfp4 import published
from .tensors import noise

pytestmark = pytest.mark.usefixtures("poisoned_empty")
EPS = 1e-6
# The interpreter cuts to bf16 where a GPU rounds.
TOLERANCE = {torch.float32: 1e-6, torch.bfloat16: 1e-2}
each_dtype = pytest.mark.parametrize("dtype", TOLERANCE, ids=["fp32", "bf16"])
MATRICES = [
    ((128, 160), 256, False),
    ((40, 24), 320, True),
    ((130,), 208, False),
    ((36,), 96, True),
]
each_matrix = pytest.mark.parametrize(("parts", "columns", "divided"), MATRICES)


def laid_out(matrix: Matrix, device: torch.device) -> Matrix:
    return Matrix(for_kernels(matrix.to(device).segments))


def on_device(matrix: Matrix, device: torch.device) -> NvFp4Halves:
    (weight,) = laid_out(matrix, device).segments
    assert isinstance(weight, NvFp4Halves)
    return weight


@pytest.mark.parametrize("batch", [1, 20, 40])
@each_dtype
@each_matrix
def test_product(
    parts: tuple[int, ...],
    columns: int,
    divided: bool,
    dtype: torch.dtype,
    batch: int,
    device: torch.device,
) -> None:
    matrix = published(parts, columns, divided=divided)
    wide = noise(1, batch, columns + 16).to(dtype)
    got = nvfp4_product(wide.to(device)[:, :columns], on_device(matrix, device))
    assert got.dtype is dtype
    want = functional.linear(wide[:, :columns].float(), numbers(matrix))
    assert relative(got, want) < TOLERANCE[dtype]


@pytest.mark.parametrize("tile", [Tile(64, 16, 2, 2, 4), Tile(128, 64, 4, 2, 4)])
def test_shares_of_the_columns_are_joined(tile: Tile, device: torch.device) -> None:
    matrix = published((100, 60), 640)
    x = noise(1, 37, 640).bfloat16()
    got = nvfp4_product(x.to(device), on_device(matrix, device), tile=tile)
    assert relative(got, functional.linear(x.float(), numbers(matrix))) < 1e-2


def test_a_row_is_the_same_beside_others(device: torch.device) -> None:
    weight = on_device(published((130,), 256), device)
    x = noise(7, 16, 256).bfloat16().to(device)
    together = nvfp4_product(x, weight)
    x[1:] = float("nan")
    assert torch.equal(nvfp4_product(x, weight)[0], together[0])
    assert torch.equal(nvfp4_product(x[:1], weight)[0], together[0])


@pytest.mark.parametrize("phase", Phase)
@each_dtype
def test_a_matrix_of_several_kinds_is_joined(
    phase: Phase, dtype: torch.dtype, device: torch.device
) -> None:
    segments = (*published((48, 64), 256).segments, Plain(noise(5, 6, 256).to(dtype) / 16))
    matrix = laid_out(Matrix(segments), device)
    x = noise(1, 5, 256).to(dtype)
    got = phase_product(x.to(device), matrix, phase)
    want = functional.linear(x.float(), Matrix(segments).dequantised(torch.float32))
    assert relative(got, want) < TOLERANCE[dtype]


@each_dtype
def test_a_row_is_normed_first(dtype: torch.dtype, device: torch.device) -> None:
    published_matrix = published((40, 40), 256)
    matrix, whole = laid_out(published_matrix, device), numbers(published_matrix)
    branch, residual = noise(1, 1, 256).to(dtype), noise(2, 1, 256).to(dtype)
    norm = 1 + 0.1 * noise(4, 256)
    normed = rms_norm(residual + branch, norm, EPS)
    given = [tensor.to(device) for tensor in (branch, residual.clone(), norm)]
    got, total = normed_row_product(*given, EPS, matrix)
    assert relative(got, functional.linear(normed.float(), whole)) < TOLERANCE[dtype]
    assert relative(total, residual + branch) < TOLERANCE[dtype]
    given = [tensor.to(device) for tensor in (branch, residual.clone(), norm)]
    got, _ = normed_row_swiglu(*given, EPS, matrix)
    gate, up = functional.linear(normed.float(), whole).chunk(2, dim=-1)
    assert relative(got, functional.silu(gate) * up) < 3 * TOLERANCE[dtype]
    got = row_product(normed.to(device), matrix)
    assert relative(got, functional.linear(normed.float(), whole)) < TOLERANCE[dtype]
