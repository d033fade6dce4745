"""NVFP4 segments in the kernels' layout hold the published numbers, bit for bit."""

import pytest
import torch

from tasuki.model.weights.kernel_layout import NvFp4Halves, for_kernels
from tasuki.model.weights.matrix import Kind, Matrix
from tests.kernels.published import numbers, nvfp4_part, published


@pytest.mark.parametrize("divided", [False, True])
@pytest.mark.parametrize("stack", [(), (3,)], ids=["one", "stack"])
@pytest.mark.parametrize(("rows", "columns"), [((7, 9), 256), ((5,), 96), ((4, 4, 4), 336)])
def test_neighbours_are_one_matrix(
    rows: tuple[int, ...], columns: int, stack: tuple[int, ...], divided: bool
) -> None:
    matrix = published(Kind.NVFP4, rows, columns, *stack, divided=divided)
    (made,) = for_kernels(matrix.segments)
    assert isinstance(made, NvFp4Halves) and made.kind is Kind.NVFP4
    laid_out = Matrix((made,))
    assert laid_out.shape == matrix.shape
    assert torch.equal(numbers(laid_out), numbers(matrix))


def test_ranges_of_tensor_scales_stay_with_their_rows() -> None:
    matrix = Matrix((nvfp4_part(8, 64, 3, 2, divided=False, ranges=2),))
    laid_out = Matrix(for_kernels(matrix.segments))
    assert torch.equal(numbers(laid_out), numbers(matrix))


def test_last_rows_are_those_of_the_whole() -> None:
    matrix = published(Kind.NVFP4, (6, 5), 160)
    last = Matrix(for_kernels(matrix.segments)).last_rows(7)
    assert last.shape == (7, 160)
    assert torch.equal(numbers(last), numbers(matrix)[-7:])
