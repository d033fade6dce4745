"""A mixture of NVFP4 experts against the CPU path on what was published: few tokens and many,
beside shared experts stored otherwise."""

from dataclasses import replace

import pytest
import torch
from torch.nn import functional

from tasuki.model.config import MoeShape
from tasuki.model.forward import Phase
from tasuki.model.ops.moe.expert_tiles import Tile
from tasuki.model.ops.moe.experts import moe
from tasuki.model.ops.moe.nvfp4_grouped import grouped_nvfp4
from tasuki.model.weights.kernel_layout import NvFp4Halves, for_kernels
from tasuki.model.weights.matrix import Kind
from tests.harness.model_shapes import MOE

from .coded_experts import FEW_TOKENS, layer, naive, on_device, small_batches
from .fp8 import numbers, relative
from .nvfp4 import published
from .tensors import count, noise

__all__ = ["small_batches"]
pytestmark = pytest.mark.usefixtures("poisoned_empty", "small_batches")
CONFIG = replace(MOE, hidden=144, feed_forward=MoeShape(6, 2, 32, 48))
MANY = FEW_TOKENS + 6
NVFP4, PLAIN, BLOCK = Kind.NVFP4, Kind.PLAIN, Kind.FP8_BLOCK
each_mix = pytest.mark.parametrize(
    ("routed", "shared"), [(NVFP4, NVFP4), (NVFP4, PLAIN), (PLAIN, NVFP4), (NVFP4, BLOCK)]
)


@each_mix
def test_float32_is_exact(routed: Kind, shared: Kind, device: torch.device) -> None:
    weights = layer(routed, shared, CONFIG, torch.float32)
    x = noise(4, 2, CONFIG.hidden)
    got = moe(x.to(device), on_device(weights, device), CONFIG, count(2, device), None, Phase.STEP)
    want = naive(x, weights, CONFIG)
    assert relative(got, want) < 1e-5


@pytest.mark.parametrize("tokens", [FEW_TOKENS, MANY])
@pytest.mark.parametrize("phase", Phase)
def test_bf16_rounds_activations_alone(phase: Phase, tokens: int, device: torch.device) -> None:
    weights = layer(NVFP4, NVFP4, CONFIG, torch.bfloat16)
    x = noise(4, tokens, CONFIG.hidden).bfloat16()
    rows = count(tokens, device)
    got = moe(x.to(device), on_device(weights, device), CONFIG, rows, None, phase)
    want = naive(x, weights, CONFIG)
    error = (got.cpu().float() - want).norm(dim=-1) / want.norm(dim=-1)
    assert float(error.max()) < 0.02


def test_rows_past_the_count_change_nothing(device: torch.device) -> None:
    weights = on_device(layer(NVFP4, NVFP4, CONFIG, torch.bfloat16), device)
    x = noise(4, MANY, CONFIG.hidden).bfloat16().to(device)
    alone = moe(x[: MANY - 2], weights, CONFIG, count(MANY - 2, device))
    x[MANY - 2 :] = torch.nan
    padded = moe(x, weights, CONFIG, count(MANY - 2, device))[: MANY - 2]
    torch.testing.assert_close(padded, alone, rtol=0, atol=0)


@pytest.mark.parametrize(("parts", "columns"), [((64, 64), 128), ((24, 24), 208), ((130,), 256)])
def test_grouped_rows(parts: tuple[int, ...], columns: int, device: torch.device) -> None:
    counts = (3, 0, 18, 1, 0)
    matrix = published(parts, columns, len(counts))
    (weight,) = for_kernels(matrix.to(device).segments)
    assert isinstance(weight, NvFp4Halves)
    ends = torch.tensor(counts).cumsum(0).int().to(device)
    pairs = noise(3, sum(counts) + 5, columns).bfloat16()
    pairs[sum(counts) :] = torch.nan
    got = grouped_nvfp4(pairs.to(device), weight, ends, Tile(32, 16, 2, 4)).cpu()
    split = pairs[: sum(counts)].float().split(counts)
    want = torch.cat(
        [functional.linear(*pair) for pair in zip(split, numbers(matrix), strict=True)]
    )
    assert relative(got[: sum(counts)], want) < 1e-2
    assert bool(got[sum(counts) :].isnan().all())
