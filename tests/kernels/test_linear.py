"""Products of few rows, and of up to 16, compared with torch's and their references, with shapes
that fill no block."""

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from tasuki.model.ops.linear.gemv import Stream, gemv, norm_gemv, norm_gemv_swiglu
from tasuki.model.ops.linear.small_batch import Tile, is_one_round, small_batch
from tasuki.model.ops.norm.reference import rms_norm

from .tensors import noise

pytestmark = pytest.mark.usefixtures("poisoned_empty")
few_rows = pytest.mark.parametrize(
    ("rows", "columns", "batch"), [(13, 96, 1), (13, 96, 3), (1, 48, 1), (1, 48, 3)]
)
each_dtype = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
STREAM = Stream(4, 64, 4)
EPS = 1e-6


def near(got: Tensor, want: Tensor) -> None:
    assert got.dtype is want.dtype
    # The interpreter truncates to bf16 where a GPU rounds, also before the product.
    tolerance = 1e-5 if got.dtype is torch.float32 else 0.1
    torch.testing.assert_close(got, want, atol=tolerance, rtol=tolerance)


@each_dtype
@few_rows
def test_product(
    rows: int, columns: int, batch: int, dtype: torch.dtype, device: torch.device
) -> None:
    x, weight = noise(1, batch, columns).to(dtype), noise(2, rows, columns).to(dtype)
    got = gemv(x.to(device), weight.to(device), STREAM).cpu()
    near(got, functional.linear(x.float(), weight.float()).to(dtype))


@pytest.mark.parametrize("added", [True, False], ids=["sum", "alone"])
@each_dtype
@few_rows
def test_product_of_a_norm(
    rows: int, columns: int, batch: int, added: bool, dtype: torch.dtype, device: torch.device
) -> None:
    residual, weight = noise(1, batch, columns).to(dtype), noise(2, rows, columns).to(dtype)
    branch = noise(3, batch, columns).to(dtype) if added else None
    norm = 1 + 0.1 * noise(4, columns)
    got, total = norm_gemv(
        None if branch is None else branch.to(device),
        residual.to(device),
        norm.to(device),
        EPS,
        weight.to(device),
        STREAM,
    )
    want = residual if branch is None else residual + branch
    near(total.cpu(), want)
    normed = rms_norm(want, norm, EPS)
    near(got.cpu(), functional.linear(normed.float(), weight.float()).to(dtype))


@each_dtype
@few_rows
def test_swiglu_of_a_norm(
    rows: int, columns: int, batch: int, dtype: torch.dtype, device: torch.device
) -> None:
    branch, residual = noise(1, batch, columns).to(dtype), noise(2, batch, columns).to(dtype)
    gate_up, norm = noise(3, 2 * rows, columns).to(dtype), 1 + 0.1 * noise(4, columns)
    got, total = norm_gemv_swiglu(
        branch.to(device), residual.to(device), norm.to(device), EPS, gate_up.to(device), STREAM
    )
    near(total.cpu(), residual + branch)
    normed = rms_norm(residual + branch, norm, EPS).float()
    gate, up = functional.linear(normed, gate_up.float()).chunk(2, dim=-1)
    want = (functional.silu(gate) * up).to(dtype)
    if dtype is torch.bfloat16:
        # The tolerance is relative to the products, because two of them may nearly cancel.
        torch.testing.assert_close(got.cpu(), want, atol=2.0, rtol=5e-2)
    else:
        torch.testing.assert_close(got.cpu(), want, atol=1e-3, rtol=1e-4)


@pytest.mark.parametrize("batch", [1, 5, 16])
@pytest.mark.parametrize(("rows", "columns"), [(32, 64), (50, 192), (7, 32)])
def test_product_of_up_to_16_rows(
    rows: int, columns: int, batch: int, device: torch.device
) -> None:
    x, weight = noise(1, batch, columns).bfloat16(), noise(2, rows, columns).bfloat16()
    got = small_batch(x.to(device), weight.to(device), Tile(16, 32, 2, 2)).cpu()
    want = functional.linear(x.float(), weight.float())
    torch.testing.assert_close(got.float(), want, atol=0.1, rtol=2e-2)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU: the size is for one")
@pytest.mark.parametrize("batch", [2, 13, 16])
def test_the_size_it_is_for(batch: int, device: torch.device) -> None:
    x = noise(3, batch, 12288).bfloat16().to(device)
    rows = 32 * torch.cuda.get_device_properties(device).multi_processor_count - 96
    weight = noise(4, rows, 12288).bfloat16().to(device) / 100
    assert is_one_round(weight)
    assert not is_one_round(weight[: rows // 2]) and not is_one_round(weight.float())
    got, want = small_batch(x, weight), functional.linear(x.float(), weight.float())
    torch.testing.assert_close(got.float(), want, atol=0.05, rtol=1e-2)
