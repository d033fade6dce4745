"""One token's experts behind their norm, in one launch fewer."""

from dataclasses import replace

import pytest
import torch

from tasuki.model.config import MoeShape
from tasuki.model.ops.moe.gemv import moe_gemv, norm_moe_gemv
from tasuki.model.ops.norm.rms_norm import add_rms_norm
from tasuki.model.weights.segment import Kind
from tests.harness.model_shapes import MOE

from .coded_experts import layer, naive, on_device, small_batches
from .fp8 import relative
from .tensors import count, noise

__all__ = ["small_batches"]
pytestmark = pytest.mark.usefixtures("poisoned_empty", "small_batches")
SHAPE = MoeShape(6, 2, 32, 48)
CONFIG = replace(MOE, hidden=144, feed_forward=SHAPE)
EPS = 1e-6


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", [Kind.PLAIN, Kind.FP8_BLOCK, Kind.FP8_CHANNEL, Kind.NVFP4])
@pytest.mark.parametrize("experts", [6, 8])
def test_a_token_behind_its_norm(
    kind: Kind, dtype: torch.dtype, experts: int, device: torch.device
) -> None:
    """experts: rows of the router that fill tiles, and that do not."""
    config = replace(CONFIG, feed_forward=replace(SHAPE, experts=experts))
    weights = layer(kind, kind, config, dtype)
    branch, residual = (noise(seed, 1, config.hidden).to(dtype) for seed in (5, 6))
    norm = 1 + 0.1 * noise(7, config.hidden)
    on_gpu = on_device(weights, device)
    before = residual.to(device)
    got, total = norm_moe_gemv(
        branch.to(device), before, norm.to(device), EPS, on_gpu, SHAPE.chosen, count(1, device)
    )
    x, both = add_rms_norm(branch.to(device), residual.to(device), norm.to(device), EPS)
    assert torch.equal(total, both) and torch.equal(before.cpu(), residual)
    bound = 1e-5 if dtype is torch.float32 else 0.02
    assert relative(got, naive(x.cpu(), weights, config)) < bound
    assert relative(got, moe_gemv(x, on_gpu, SHAPE.chosen, count(1, device)).cpu()) < bound / 4
