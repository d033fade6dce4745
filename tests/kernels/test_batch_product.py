"""Products of up to 16 rows against torch's."""

import pytest
import torch
from tasuki.model.ops.linear.small_batch import Tile, is_one_round, small_batch
from torch.nn import functional

from .tensors import noise

pytestmark = pytest.mark.usefixtures("poisoned_empty")


@pytest.mark.parametrize("batch", [1, 5, 16])
@pytest.mark.parametrize(("rows", "columns"), [(32, 64), (50, 192), (7, 32)])
def test_product(rows: int, columns: int, batch: int, device: torch.device) -> None:
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
