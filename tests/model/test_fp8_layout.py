"""FP8 segments in the kernels' layout hold the published numbers, for any neighbouring segments."""

import pytest
import torch

from tasuki.model.weights.kernel_layout import for_kernels
from tasuki.model.weights.matrix import Kind, Matrix, Plain, WeightsError
from tasuki.model.weights.quantised_segments import Fp8
from tests.kernels.published import fp8_part as part

BLOCK, CHANNEL, TENSOR = Kind.FP8_BLOCK, Kind.FP8_CHANNEL, Kind.FP8_TENSOR


@pytest.mark.parametrize(
    ("kind", "rows", "columns", "grid"),
    [
        (BLOCK, (128, 256, 160), 256, (128, 128)),
        (BLOCK, (96, 32), 256, (1, 128)),
        (BLOCK, (128, 100), 256, (1, 128)),
        (BLOCK, (100,), 256, (1, 128)),
        (BLOCK, (128,), 96, (1, 96)),
        (CHANNEL, (7, 9), 64, (1, 64)),
        (TENSOR, (7, 9), 64, (1, 64)),
    ],
)
@pytest.mark.parametrize("stack", [(), (3,)], ids=["one", "stack"])
def test_neighbours_are_one_matrix(
    kind: Kind,
    rows: tuple[int, ...],
    columns: int,
    grid: tuple[int, int],
    stack: tuple[int, ...],
) -> None:
    published = Matrix(tuple(part(kind, n, columns, n, *stack) for n in rows))
    (made,) = for_kernels(published.segments)
    assert isinstance(made, Fp8) and made.kind is kind
    assert (made.block_rows, made.block_columns) == grid
    laid_out = Matrix((made,))
    assert laid_out.shape == published.shape
    for index in range(*stack) if stack else [None]:
        got, want = (m if index is None else m[index] for m in (laid_out, published))
        assert torch.equal(got.dequantised(torch.float32), want.dequantised(torch.float32))


def test_kinds_stay_apart_and_in_order() -> None:
    plain = Plain(torch.ones(4, 256))
    segments = (part(BLOCK, 128, 256, 1), part(BLOCK, 128, 256, 2), plain, part(TENSOR, 5, 256, 3))
    made = for_kernels(segments)
    assert [segment.kind for segment in made] == [BLOCK, Kind.PLAIN, TENSOR]
    whole, laid_out = Matrix(segments), Matrix(made)
    assert torch.equal(laid_out.dequantised(torch.float32), whole.dequantised(torch.float32))
    with pytest.raises(WeightsError, match="quantise them alike"):
        _ = laid_out.only


@pytest.mark.parametrize(("kind", "count"), [(BLOCK, 160), (CHANNEL, 100), (TENSOR, 100)])
def test_last_rows_are_a_view(kind: Kind, count: int) -> None:
    whole = Matrix((part(kind, 288, 256, 1),))
    last = whole.last_rows(count)
    want = whole.dequantised(torch.float32)[-count:]
    assert torch.equal(last.dequantised(torch.float32), want)
    assert last.segments[0].values.data_ptr() > whole.segments[0].values.data_ptr()  # type: ignore[attr-defined]


def test_rows_that_share_a_scale_are_not_cut() -> None:
    with pytest.raises(WeightsError, match="100 rows would cut"):
        Matrix((part(BLOCK, 288, 256, 1),)).last_rows(100)
