"""Products of FP8 rows on a Hopper GPU have the bits of their twin in PyTorch, of any tile, and of
the library where it has one share of the columns."""

import pytest
import torch
from torch import Tensor

from tasuki.model.ops.linear import fp8_rows_reference
from tasuki.model.ops.linear.fp8_rows_reference import coded, rows_product, shares_of
from tasuki.model.weights.matrix import Kind
from tasuki.model.weights.quantised_segments import Fp8
from tests.kernels.published import on_device, published

# Where no GPU is, tests of kernels must be the first to import Triton. So each test imports it.
GPU = torch.device("cuda")
SHAPES = {
    "out_proj": (4096, 4096),
    "down": (4096, 12288),
    "in_proj": (12288, 4096),
    "small": (288, 640),
}
each_shape = pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)


@pytest.fixture(autouse=True)
def on_hopper(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fp8_rows_reference, "_CHUNK", 1 << 26)
    if torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("the twin models Hopper's instruction")


def rows_of_all_sizes(count: int, columns: int) -> Tensor:
    """Return rows whose codes include zeros and the smallest numbers. Rows and groups differ in
    scale."""
    generator = torch.Generator("cuda").manual_seed(count + columns)
    x = torch.randn(count, columns, device=GPU, generator=generator)
    sizes = torch.randn(count, columns // 16, device=GPU, generator=generator)
    x *= torch.exp2(5 * sizes).repeat_interleave(16, 1)
    x *= torch.rand(count, columns, device=GPU, generator=generator) > 0.1
    return x.bfloat16()


def weight_of(shape: tuple[int, int], kind: Kind = Kind.FP8_BLOCK) -> Fp8:
    weight = on_device(published(kind, (shape[0],), shape[1]), GPU)
    assert isinstance(weight, Fp8)
    return weight


def product(x: Tensor, weight: Fp8, tile: tuple[int, int, int, int, int] | None = None) -> Tensor:
    """Return the own kernel's product. tile: sizes of a Tile; None: that of the shape."""
    from tasuki.model.ops.linear.fp8_activations import quantised
    from tasuki.model.ops.linear.fp8_rows_product import fp8_rows_product
    from tasuki.model.ops.linear.product_tiles import Tile

    output = torch.empty(len(x), weight.shape[0], dtype=torch.float32, device=GPU)
    return fp8_rows_product(
        quantised(x), weight, output, tile=None if tile is None else Tile(*tile)
    )


def twin(x: Tensor, weight: Fp8, shares: int) -> Tensor:
    """Return the twin's product. Rows are quantised on the CPU: PyTorch's divisions on a GPU are
    wrong in their last bits."""
    codes, scales = coded(x.cpu())
    return rows_product(codes.to(GPU), scales.to(GPU), weight, shares)


@each_shape
@pytest.mark.parametrize("batch", [1, 16, 24, 64, 100, 256])
def test_the_twin_has_the_same_bits(shape: tuple[int, int], batch: int) -> None:
    weight, x = weight_of(shape), rows_of_all_sizes(batch, shape[1])
    assert torch.equal(product(x, weight), twin(x, weight, shares_of(*shape)))


@pytest.mark.parametrize("kind", [Kind.FP8_CHANNEL, Kind.FP8_TENSOR])
def test_the_twin_has_the_same_bits_with_scales_of_rows(kind: Kind) -> None:
    shape = (288, 640)
    weight, x = weight_of(shape, kind), rows_of_all_sizes(40, shape[1])
    assert torch.equal(product(x, weight), twin(x, weight, 1))


@each_shape
def test_any_tile_has_the_same_bits(shape: tuple[int, int]) -> None:
    weight, x = weight_of(shape), rows_of_all_sizes(200, shape[1])
    want, shares = product(x, weight), shares_of(*shape)
    for tile in (
        (64, 16, shares, 4, 4),
        (64, 64, 1, 3, 4),
        (32, 128, shares, 4, 4),
        (128, 64, 1, 4, 4),
        (128, 128, 1, 4, 8),
    ):
        assert torch.equal(product(x, weight, tile), want), tile


@each_shape
def test_a_row_is_the_same_beside_others(shape: tuple[int, int]) -> None:
    from tasuki.model.ops.linear.fp8_activations import quantised
    from tasuki.model.ops.linear.fp8_rows_product import Tail, fp8_rows_product, tail_product

    weight, x = weight_of(shape), rows_of_all_sizes(700, shape[1])
    values = torch.randn(48, shape[1], device=GPU).bfloat16() / shape[1] ** 0.5

    def with_tail(rows: Tensor) -> Tensor:
        output = rows.new_empty(len(rows), shape[0] + 48)
        return fp8_rows_product(quantised(rows), weight, output, Tail(rows, values))

    whole = with_tail(x)
    for count in (1, 16, 32, 64, 128, 300, 600):
        assert torch.equal(with_tail(x[:count]), whole[:count]), count
    alone = torch.zeros_like(whole)
    tail_product(quantised(x), weight, alone, Tail(x, values))
    assert torch.equal(alone[:, shape[0] :], whole[:, shape[0] :])


@pytest.mark.parametrize("shape", [(12288, 4096), (10240, 4096), (24576, 4096)])
@pytest.mark.parametrize("batch", [64, 68, 100, 256, 1000, 4096, 8192])
def test_the_library_has_the_same_bits_from_64_rows_on(shape: tuple[int, int], batch: int) -> None:
    from tasuki.model.ops.linear.fp8_activations import quantised
    from tasuki.model.ops.linear.fp8_library import block_product, has_block_product
    from tasuki.model.ops.linear.fp8_rows_product import fp8_rows_product

    weight, x = weight_of(shape), rows_of_all_sizes(batch, shape[1])
    assert has_block_product(weight, x.dtype) and shares_of(*shape) == 1
    own = fp8_rows_product(quantised(x), weight, x.new_empty(batch, shape[0]))
    assert torch.equal(block_product(quantised(x), weight), own)


@pytest.mark.parametrize("shape", [(4096, 4096), (4096, 12288), (2048, 4096)])
@pytest.mark.parametrize("batch", [64, 512, 1003, 8192])
def test_the_library_has_the_same_bits_by_shares(shape: tuple[int, int], batch: int) -> None:
    from tasuki.model.ops.linear.fp8_activations import quantised
    from tasuki.model.ops.linear.fp8_library import has_shared_product, shared_product
    from tasuki.model.ops.linear.fp8_rows_product import fp8_rows_product

    weight, x = weight_of(shape), rows_of_all_sizes(batch, shape[1])
    shares = shares_of(*shape)
    assert shares > 1 and has_shared_product(weight, x.dtype, shares)
    own = fp8_rows_product(quantised(x), weight, x.new_empty(batch, shape[0]))
    wide = x.new_empty(batch, shape[0] + 48)
    shared_product(quantised(x), weight, shares, wide[:, : shape[0]])
    assert torch.equal(wide[:, : shape[0]], own)


def test_the_library_is_not_asked_for_blocks_it_gets_wrong() -> None:
    """Of columns whose blocks are no multiple of 4 the library's product is wrong without an
    error. The own kernel takes them."""
    from tasuki.model.ops.linear.fp8_activations import quantised
    from tasuki.model.ops.linear.fp8_library import block_product, has_block_product
    from tasuki.model.ops.linear.fp8_rows_product import rows_tile

    shape = (256, 640)
    weight, x = weight_of(shape), rows_of_all_sizes(64, shape[1])
    assert not has_block_product(weight, x.dtype)
    assert rows_tile(64, *shape).split == 1
    wrong = block_product(quantised(x), weight).float()
    want = product(x, weight)
    assert float((wrong - want).norm() / want.norm()) > 0.01
