"""A mixture of NVFP4 experts against the CPU path on what was published: few tokens and many,
beside shared experts stored otherwise."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from tasuki.model.config import MoeShape
from tasuki.model.ops.linear.gemv import Stream
from tasuki.model.ops.moe.expert_tiles import Tile
from tasuki.model.ops.moe.experts import moe
from tasuki.model.ops.moe.nvfp4_grouped import grouped_nvfp4
from tasuki.model.ops.moe.reference import gated_shared, mixture, route
from tasuki.model.phase import Phase
from tasuki.model.weights.kernels.fp8_layout import for_kernels
from tasuki.model.weights.kernels.nvfp4_layout import NvFp4Halves
from tasuki.model.weights.layers import MlpWeights, MoeWeights
from tasuki.model.weights.matrix import Matrix
from tasuki.model.weights.segment import Kind
from tests.harness.model_shapes import MOE

from .fp8 import published as published_fp8
from .fp8 import relative
from .nvfp4 import numbers, published
from .tensors import count, noise

pytestmark = pytest.mark.usefixtures("poisoned_empty")
CONFIG = replace(MOE, hidden=144, feed_forward=MoeShape(6, 2, 32, 48))
FEW_TOKENS = 3
MANY = FEW_TOKENS + 6
NVFP4, PLAIN, BLOCK = Kind.NVFP4, Kind.PLAIN, Kind.FP8_BLOCK
each_mix = pytest.mark.parametrize(
    ("routed", "shared"), [(NVFP4, NVFP4), (NVFP4, PLAIN), (PLAIN, NVFP4), (NVFP4, BLOCK)]
)


@pytest.fixture(autouse=True)
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    for most in ("MOST_GEMV_TOKENS", "MOST_CODED_GEMV_TOKENS"):
        monkeypatch.setattr(f"tasuki.model.ops.moe.experts.{most}", FEW_TOKENS)
    # A published matrix has several blocks of columns.
    for stream in ("_PLAIN", "_CODES", "_FOUR_BITS"):
        monkeypatch.setattr(f"tasuki.model.ops.moe.gemv.{stream}", Stream(8, 128, 2))


def layer(routed: Kind, shared: Kind, dtype: torch.dtype) -> MoeWeights:
    """As published, on the CPU."""
    hidden, shape = CONFIG.hidden, CONFIG.feed_forward
    assert isinstance(shape, MoeShape)

    def matrix(kind: Kind, parts: tuple[int, ...], columns: int, *stack: int) -> Matrix:
        if kind is PLAIN:
            size = (*stack, sum(parts), columns)
            return Matrix.of((noise(8, *size) / columns**0.5).to(dtype))
        if kind is NVFP4:
            return published(parts, columns, *stack, divided=len(parts) == 1)
        return published_fp8(kind, parts, columns, *stack)

    inner, wide, experts = shape.intermediate, shape.shared_intermediate, shape.experts
    return MoeWeights(
        router=(noise(1, experts, hidden) / hidden**0.5).to(dtype),
        gate_up=matrix(routed, (inner, inner), hidden, experts),
        down=matrix(routed, (hidden,), inner, experts),
        shared=MlpWeights(matrix(shared, (wide, wide), hidden), matrix(shared, (hidden,), wide)),
        shared_gate=(noise(2, 1, hidden) / hidden**0.5).to(dtype),
    )


def on_device(weights: MoeWeights, device: torch.device) -> MoeWeights:
    def moved(matrix: Matrix) -> Matrix:
        return Matrix(for_kernels(matrix.to(device).segments))

    return MoeWeights(
        router=weights.router.to(device),
        gate_up=moved(weights.gate_up),
        down=moved(weights.down),
        shared=MlpWeights(moved(weights.shared.gate_up), moved(weights.shared.down)),
        shared_gate=weights.shared_gate.to(device),
    )


def naive(x: Tensor, weights: MoeWeights) -> Tensor:
    """On the CPU in float32."""
    assert isinstance(CONFIG.feed_forward, MoeShape)

    def exact(matrix: Matrix) -> Matrix:
        return Matrix.of(matrix.plain.float() if matrix.is_plain else numbers(matrix))

    x, shared = x.float(), weights.shared
    shares, experts = route(x, weights.router.float(), CONFIG.feed_forward.chosen)
    routed = mixture(x, exact(weights.gate_up), exact(weights.down), shares, experts)
    gate = weights.shared_gate.float()
    return routed + gated_shared(x, exact(shared.gate_up), exact(shared.down), gate)


@each_mix
def test_float32_is_exact(routed: Kind, shared: Kind, device: torch.device) -> None:
    weights = layer(routed, shared, torch.float32)
    x = noise(4, 2, CONFIG.hidden)
    got = moe(x.to(device), on_device(weights, device), CONFIG, count(2, device), None, Phase.STEP)
    want = naive(x, weights)
    assert relative(got, want) < 1e-5


@pytest.mark.parametrize("tokens", [FEW_TOKENS, MANY])
@pytest.mark.parametrize("phase", Phase)
def test_bf16_rounds_activations_alone(phase: Phase, tokens: int, device: torch.device) -> None:
    weights = layer(NVFP4, NVFP4, torch.bfloat16)
    x = noise(4, tokens, CONFIG.hidden).bfloat16()
    rows = count(tokens, device)
    got = moe(x.to(device), on_device(weights, device), CONFIG, rows, None, phase)
    want = naive(x, weights)
    error = (got.cpu().float() - want).norm(dim=-1) / want.norm(dim=-1)
    assert float(error.max()) < 0.02


def test_rows_past_the_count_change_nothing(device: torch.device) -> None:
    weights = on_device(layer(NVFP4, NVFP4, torch.bfloat16), device)
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
