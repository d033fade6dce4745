"""Products with FP8 and NVFP4 weights compared with their references on the codes' numbers. Cases:
every grid of scales, both publishers, parts that fall between blocks, sizes that fill no tile."""

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from tasuki.model.forward import Activations
from tasuki.model.ops.linear.fp8_gemv import fp8_gemv, norm_fp8_gemv, norm_fp8_gemv_swiglu
from tasuki.model.ops.linear.fp8_library import library_product
from tasuki.model.ops.linear.fp8_product import fp8_product, fp8_product_swiglu, tile_for
from tasuki.model.ops.linear.gemv import Stream
from tasuki.model.ops.linear.nvfp4_product import nvfp4_product
from tasuki.model.ops.linear.phase_product import phase_product
from tasuki.model.ops.linear.product_tiles import Tile
from tasuki.model.ops.linear.reference import quantised_rows
from tasuki.model.ops.linear.row_product import normed_row_product, normed_row_swiglu, row_product
from tasuki.model.ops.norm.reference import rms_norm
from tasuki.model.weights.matrix import Kind, Matrix, Plain
from tests.harness.covering import every_pair, every_value

from .published import laid_out, numbers, on_device, published, relative
from .tensors import noise

pytestmark = pytest.mark.usefixtures("poisoned_empty")
EPS = 1e-6
STREAM = Stream(16, 128, 4)
# The interpreter truncates to bf16 where a GPU rounds.
TOLERANCE = {torch.float32: 1e-6, torch.bfloat16: 1e-2}
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
each_dtype = pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
BLOCK, CHANNEL, TENSOR, NVFP4 = Kind.FP8_BLOCK, Kind.FP8_CHANNEL, Kind.FP8_TENSOR, Kind.NVFP4


@dataclass(frozen=True)
class Stored:
    """Parts one below the other, as a publisher stores them. divided: as in published()."""

    kind: Kind
    parts: tuple[int, ...]
    columns: int
    divided: bool = False

    def matrix(self, times: int = 1) -> Matrix:
        """Return the matrix. times: number of repetitions of the parts, one below the other."""
        parts = self.parts * times
        return published(self.kind, parts, self.columns, divided=self.divided)

    def product(self, x: Tensor, weight: Any, tile: Tile | None = None) -> Tensor:
        """Return the product with a segment of such a matrix."""
        product = nvfp4_product if self.kind is NVFP4 else fp8_product
        return product(x, weight, tile=tile)

    def __str__(self) -> str:
        return f"{self.kind.value}-{'+'.join(map(str, self.parts))}-{self.columns}"


def named(*stored: Stored) -> dict[str, Stored]:
    return {str(each): each for each in stored}


# Blocks whole; cut by parts, then by columns too; one block wide.
FP8 = named(
    Stored(BLOCK, (128, 160), 256),
    Stored(BLOCK, (40, 24), 320),
    Stored(BLOCK, (130,), 200),
    Stored(BLOCK, (36,), 96),
    Stored(CHANNEL, (20, 13), 256),
    Stored(TENSOR, (20, 12), 200),
)
BOTH = FP8 | named(
    Stored(NVFP4, (128, 160), 256),
    Stored(NVFP4, (40, 24), 320, divided=True),
    Stored(NVFP4, (130,), 208),
    Stored(NVFP4, (36,), 96, divided=True),
)


@every_value(stored=FP8, dtype=DTYPES)
def test_product_of_one_row(stored: Stored, dtype: torch.dtype, device: torch.device) -> None:
    matrix = stored.matrix()
    x = noise(1, 2, stored.columns).to(dtype)
    got = fp8_gemv(x.to(device), on_device(matrix, device), STREAM)
    assert got.dtype is dtype
    assert relative(got, functional.linear(x.float(), numbers(matrix))) < TOLERANCE[dtype]


@every_pair(stored=BOTH, dtype=DTYPES, batch={"1": 1, "20": 20, "33": 33})
def test_product_of_many_rows(
    stored: Stored, dtype: torch.dtype, batch: int, device: torch.device
) -> None:
    matrix = stored.matrix()
    wide = noise(1, batch, stored.columns + 16).to(dtype)
    x = wide.to(device)[:, : stored.columns]
    got = stored.product(x, on_device(matrix, device))
    assert got.dtype is dtype
    want = functional.linear(wide[:, : stored.columns].float(), numbers(matrix))
    assert relative(got, want) < TOLERANCE[dtype]


@pytest.mark.parametrize(
    "tile",
    [
        Tile(64, 16, 1, 2, 4),
        Tile(64, 16, 2, 2, 4),
        Tile(64, 64, 1, 2, 4),
        Tile(64, 64, 4, 2, 4),
        Tile(64, 128, 2, 3, 4),
    ],
)
@pytest.mark.parametrize(
    "stored", [Stored(BLOCK, (128, 64), 640), Stored(TENSOR, (96,), 520)], ids=str
)
def test_shares_of_the_columns_are_joined(stored: Stored, tile: Tile, device: torch.device) -> None:
    matrix, x = stored.matrix(), noise(1, 37, stored.columns).bfloat16()
    weight, given = on_device(matrix, device), x.to(device)
    want = functional.linear(x.float(), numbers(matrix))
    assert relative(fp8_product(given, weight, tile=tile), want) < 1e-2
    gate, up = want.chunk(2, dim=-1)
    got = fp8_product_swiglu(given, weight, tile)
    assert relative(got, functional.silu(gate) * up) < 1e-2


@pytest.mark.parametrize("tile", [Tile(64, 16, 2, 2, 4), Tile(128, 64, 4, 2, 4)])
def test_shares_of_the_columns_of_nvfp4_are_joined(tile: Tile, device: torch.device) -> None:
    matrix, x = published(NVFP4, (100, 60), 640), noise(1, 37, 640).bfloat16()
    got = nvfp4_product(x.to(device), on_device(matrix, device), tile=tile)
    assert relative(got, functional.linear(x.float(), numbers(matrix))) < 1e-2


def test_many_rows_of_few_tiles_share_what_is_turned() -> None:
    """Shapes of 9B use tiles of 128 rows if these fill an H200; 128 rows of in_proj do not."""
    bf16 = torch.bfloat16
    down, gate_up, in_proj = (4096, 12288), (24576, 4096), (12288, 4096)
    assert tile_for(64, *down, bf16) == Tile(64, 64, 4, 4, 4)
    assert tile_for(65, *down, bf16) == tile_for(128, *down, bf16) == Tile(64, 128, 4, 3, 4)
    assert tile_for(256, *down, bf16) == Tile(64, 128, 2, 3, 4)
    assert tile_for(128, *gate_up, bf16) == Tile(64, 128, 2, 3, 4)
    assert tile_for(256, *gate_up, bf16) == Tile(64, 128, 1, 3, 4)
    assert tile_for(128, *in_proj, bf16) == Tile(64, 64, 1, 3, 4)
    assert tile_for(256, *in_proj, bf16) == Tile(64, 128, 2, 3, 4)
    assert tile_for(256, *down, bf16, most=64) == Tile(64, 64, 1, 3, 4)


@pytest.mark.parametrize("tile", [None, Tile(64, 16, 2, 2, 4), Tile(64, 64, 2, 2, 4)])
@pytest.mark.parametrize("rows", [6, 70])
@pytest.mark.parametrize(("kind", "columns"), [(BLOCK, 256), (CHANNEL, 200)])
def test_a_tail_of_numbers_is_in_the_same_launch(
    kind: Kind, columns: int, rows: int, tile: Tile | None, device: torch.device
) -> None:
    matrix, x = published(kind, (96,), columns), noise(1, 37, columns).bfloat16()
    tail = (noise(5, rows, columns) / columns**0.5).bfloat16()
    weight = on_device(matrix, device)
    got = fp8_product(x.to(device), weight, tile=tile, tail=tail.to(device))
    whole = torch.cat([numbers(matrix), tail.float()])
    assert relative(got, functional.linear(x.float(), whole)) < 1e-2
    assert relative(got[:, 96:], functional.linear(x.float(), tail.float())) < 1e-2


@every_pair(
    stored=FP8,
    dtype=DTYPES,
    added={"sum": True, "first": False},
    tail={"b and a": True, "alone": False},
)
def test_product_of_a_norm(
    stored: Stored, dtype: torch.dtype, added: bool, tail: bool, device: torch.device
) -> None:
    matrix, columns = stored.matrix(), stored.columns
    residual, norm = noise(1, 1, columns).to(dtype), 1 + 0.1 * noise(4, columns)
    branch = noise(3, 1, columns).to(dtype) if added else None
    plain = noise(5, 6, columns).to(dtype) / columns**0.5
    got, total = norm_fp8_gemv(
        None if branch is None else branch.to(device),
        residual.to(device),
        norm.to(device),
        EPS,
        on_device(matrix, device),
        plain.to(device) if tail else None,
        STREAM,
    )
    want = residual if branch is None else residual + branch
    assert relative(total, want) < TOLERANCE[dtype]
    weights = torch.cat([numbers(matrix), plain.float()]) if tail else numbers(matrix)
    normed = rms_norm(want, norm, EPS).float()
    assert relative(got, functional.linear(normed, weights)) < TOLERANCE[dtype]


@every_value(stored=FP8, dtype=DTYPES)
def test_swiglu_of_a_norm(stored: Stored, dtype: torch.dtype, device: torch.device) -> None:
    matrix, columns = stored.matrix(times=2), stored.columns
    branch, residual = noise(1, 1, columns).to(dtype), noise(2, 1, columns).to(dtype)
    norm = 1 + 0.1 * noise(4, columns)
    given = (branch.to(device), residual.to(device), norm.to(device))
    got, total = norm_fp8_gemv_swiglu(*given, EPS, on_device(matrix, device), STREAM)
    assert relative(total, residual + branch) < TOLERANCE[dtype]
    normed = rms_norm(residual + branch, norm, EPS).float()
    gate, up = functional.linear(normed, numbers(matrix)).chunk(2, dim=-1)
    assert relative(got, functional.silu(gate) * up) < 3 * TOLERANCE[dtype]


@pytest.mark.parametrize("stored", [*FP8.values(), Stored(NVFP4, (130,), 256)], ids=str)
def test_a_row_is_the_same_beside_others(stored: Stored, device: torch.device) -> None:
    weight = on_device(stored.matrix(), device)
    x = noise(7, 16, stored.columns).bfloat16().to(device)
    together = stored.product(x, weight)
    x[1:] = float("nan")
    assert torch.equal(stored.product(x, weight)[0], together[0])
    assert torch.equal(stored.product(x[:1], weight)[0], together[0])


def test_scales_from_2_to_the_minus_20_to_2_to_the_10_lose_nothing(device: torch.device) -> None:
    matrix = published(BLOCK, (128, 128), 256)
    for part in matrix.segments:
        part.scales.copy_(torch.exp2(torch.tensor([[-20.0, 10.0]])))  # type: ignore[attr-defined]
    x = torch.cat([noise(1, 3, 128) * 2.0**20, noise(2, 3, 128) * 2.0**-10], dim=1)
    want = functional.linear(x, numbers(matrix))
    weight = on_device(matrix, device)
    for product in (fp8_gemv, fp8_product):
        got: Tensor = product(x.to(device), weight)
        assert relative(got, want) < 1e-6


LIBRARY = [Stored(BLOCK, (128, 128), 512), Stored(BLOCK, (384,), 1536), Stored(CHANNEL, (64,), 256)]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU: the library's product")
@pytest.mark.parametrize("rows", [1, 3, 65, 700])
@pytest.mark.parametrize("stored", [*LIBRARY, Stored(TENSOR, (48, 16), 256)], ids=str)
def test_the_library_multiplies_quantised_rows(
    stored: Stored, rows: int, device: torch.device
) -> None:
    matrix = stored.matrix()
    x = noise(9, rows, stored.columns).bfloat16()
    got = library_product(x.to(device), on_device(matrix, device))
    if got is None:
        # Blackwell's library has no product in blocks.
        assert stored.kind is BLOCK and torch.cuda.get_device_capability(device) != (9, 0)
        return
    codes = quantised_rows(x, 128 if stored.kind is BLOCK else stored.columns)
    assert got.shape == (rows, sum(stored.parts)) and got.dtype is torch.bfloat16
    assert relative(got, functional.linear(codes, numbers(matrix))) < 5e-3


@pytest.mark.parametrize("activations", Activations)
@pytest.mark.parametrize("kind", [BLOCK, NVFP4])
@each_dtype
def test_a_matrix_of_several_kinds_is_joined(
    activations: Activations, kind: Kind, dtype: torch.dtype, device: torch.device
) -> None:
    plain = Plain(noise(5, 6, 256).to(dtype) / 16)
    whole = Matrix((*published(kind, (128, 64), 256).segments, plain))
    matrix = laid_out(whole, device)
    x = noise(1, 5, 256).to(dtype)
    got = phase_product(x.to(device), matrix, activations)
    want = functional.linear(x.float(), whole.dequantised(torch.float32))
    # The library quantises the rows of prompts in bf16.
    quantises = activations is Activations.LIBRARY and dtype is torch.bfloat16
    quantises = kind is BLOCK and (quantises or activations is Activations.ROWS)
    assert relative(got, want) < (0.04 if quantises else TOLERANCE[dtype])


@each_dtype
def test_a_row_of_several_kinds_is_normed_first(dtype: torch.dtype, device: torch.device) -> None:
    plain = Plain(noise(5, 6, 256).to(dtype) / 16)
    matrix = laid_out(Matrix((*published(BLOCK, (128, 64), 256).segments, plain)), device)
    residual, norm = noise(2, 1, 256).to(dtype), 1 + 0.1 * noise(4, 256)
    for order in (matrix.segments, matrix.segments[::-1]):
        turned = Matrix(order)
        row, _ = normed_row_product(None, residual.to(device), norm.to(device), EPS, turned)
        whole = turned.to(torch.device("cpu")).dequantised(torch.float32)
        want = functional.linear(rms_norm(residual, norm, EPS).float(), whole)
        assert relative(row, want) < TOLERANCE[dtype]


@each_dtype
def test_a_row_of_nvfp4_is_normed_first(dtype: torch.dtype, device: torch.device) -> None:
    as_published = published(NVFP4, (40, 40), 256)
    matrix, whole = laid_out(as_published, device), numbers(as_published)
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
