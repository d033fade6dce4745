"""Products of FP8 rows with FP8 weights compared with their twin: every grid of scales, shares of
columns, tails. The interpreter multiplies in float32 and a GPU by its own instruction, whose bits
tests/gpu compares."""

import pytest
import torch
from torch.nn import functional

from tasuki.model.ops.linear.fp8_activations import quantised
from tasuki.model.ops.linear.fp8_rows_product import (
    Tail,
    fp8_rows_product,
    rows_tile,
    tail_product,
)
from tasuki.model.ops.linear.fp8_rows_reference import coded, rows_product, shares_of
from tasuki.model.ops.linear.product_tiles import Tile
from tasuki.model.weights.matrix import Kind
from tests.harness.covering import every_pair

from .published import on_device, published, relative
from .tensors import noise

pytestmark = pytest.mark.usefixtures("poisoned_empty")
TOLERANCE = 1e-3
"""The twin's adder keeps 13 bits, the interpreter's 23."""
KINDS = {"blocks": Kind.FP8_BLOCK, "rows": Kind.FP8_CHANNEL, "tensor": Kind.FP8_TENSOR}


@every_pair(
    kind=KINDS,
    size={"128+160 x 256": (288, 256), "130 x 200": (130, 200), "36 x 96": (36, 96)},
    batch={"1": 1, "20": 20, "33": 33, "70": 70},
)
def test_product_of_fp8_rows(
    kind: Kind, size: tuple[int, int], batch: int, device: torch.device
) -> None:
    rows, columns = size
    matrix = published(kind, (128, rows - 128) if rows > 128 else (rows,), columns)
    weight = on_device(matrix, device)
    x = noise(1, batch, columns).bfloat16()
    output = torch.empty(batch, rows, dtype=torch.float32, device=device)
    got = fp8_rows_product(quantised(x.to(device)), weight, output)
    want = rows_product(*coded(x), on_device(matrix, torch.device("cpu")), 1)
    assert relative(got, want) < TOLERANCE


@pytest.mark.parametrize("batch", [5, 40])
@pytest.mark.parametrize("split", [1, 2])
def test_shares_are_added_in_order(batch: int, split: int, device: torch.device) -> None:
    rows, columns = 70, 2048
    assert shares_of(rows, columns) == 2
    matrix = published(Kind.FP8_BLOCK, (rows,), columns)
    x, values = noise(1, batch, columns).bfloat16(), (noise(5, 6, columns) / 40).bfloat16()
    tail = Tail(x.to(device), values.to(device))
    tile = Tile(64, 16 if batch < 16 else 64, split, 2, 4)
    output = torch.empty(batch, rows + 6, dtype=torch.float32, device=device)
    weight = on_device(matrix, device)
    got = fp8_rows_product(quantised(tail.x), weight, output, tail, tile)
    want = rows_product(*coded(x), on_device(matrix, torch.device("cpu")), 2)
    assert relative(got[:, :rows], want) < TOLERANCE
    assert relative(got[:, rows:], functional.linear(x.float(), values.float())) < 1e-2
    alone = torch.full_like(output, torch.nan)
    tail_product(quantised(tail.x), weight, alone, tail)
    assert bool(alone[:, :rows].isnan().all())
    assert relative(alone[:, rows:], got[:, rows:].cpu()) < 1e-6


def test_a_row_is_the_same_beside_others(device: torch.device) -> None:
    weight = on_device(published(Kind.FP8_BLOCK, (128, 64), 320), device)
    x = noise(7, 16, 320).bfloat16().to(device)

    def product(rows: torch.Tensor) -> torch.Tensor:
        output = rows.new_empty(len(rows), 192)
        return fp8_rows_product(quantised(rows), weight, output)

    together = product(x)
    x[1:] = 3e4
    assert torch.equal(product(x)[0], together[0])
    assert torch.equal(product(x[:1])[0], together[0])


def test_the_weight_alone_decides_the_shares() -> None:
    """Shapes of 9B: narrow outputs have two shares, in one program each or both in one."""
    assert shares_of(4096, 4096) == shares_of(4096, 12288) == 2
    assert shares_of(2048, 8192) == 4
    assert shares_of(12288, 4096) == shares_of(24576, 4096) == shares_of(10240, 4096) == 1
    assert shares_of(64, 256) == 1
    for batch in (1, 16, 17, 64, 65, 512, 513, 8192):
        for rows, columns in ((4096, 4096), (4096, 12288), (24576, 4096)):
            tile = rows_tile(batch, rows, columns)
            assert tile.split in (1, shares_of(rows, columns))
            assert max(tile.rows, tile.batch) >= 64


def test_a_tile_of_another_instruction_is_refused(device: torch.device) -> None:
    weight = on_device(published(Kind.FP8_BLOCK, (64,), 128), device)
    x = quantised(noise(1, 16, 128).bfloat16().to(device))
    with pytest.raises(AssertionError):
        fp8_rows_product(x, weight, torch.empty(16, 64, device=device), tile=Tile(32, 16, 1, 2, 4))
