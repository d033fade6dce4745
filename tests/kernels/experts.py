"""A mixture of experts with each matrix stored in its own format, and its naive reference."""

import pytest
import torch
from torch import Tensor

from tasuki.model.config import DeltaNetConfig, MoeShape
from tasuki.model.ops.linear.gemv import Stream
from tasuki.model.ops.moe.reference import gated_shared, mixture, route
from tasuki.model.weights.layers import MlpWeights, MoeWeights
from tasuki.model.weights.matrix import Kind, Matrix

from .published import laid_out, numbers, published
from .tensors import noise

FEW_TOKENS = 3
"""Batches above this take the grouped products: both paths become short enough to interpret."""


@pytest.fixture
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make more than FEW_TOKENS tokens many, and give a published matrix several blocks of
    columns."""
    for kind in ("", "FP8_", "NVFP4_"):
        monkeypatch.setattr(f"tasuki.model.ops.moe.experts.MOST_{kind}GEMV_TOKENS", FEW_TOKENS)
    for stream in ("_PLAIN", "_CODES", "_FOUR_BITS"):
        monkeypatch.setattr(f"tasuki.model.ops.moe.gemv.{stream}", Stream(8, 128, 2))


def layer(routed: Kind, shared: Kind, config: DeltaNetConfig, dtype: torch.dtype) -> MoeWeights:
    """Return a layer as published, on the CPU."""
    hidden, shape = config.hidden, config.feed_forward
    assert isinstance(shape, MoeShape)

    def matrix(kind: Kind, parts: tuple[int, ...], columns: int, *stack: int) -> Matrix:
        if kind is Kind.PLAIN:
            size = (*stack, sum(parts), columns)
            return Matrix.of((noise(8, *size) / columns**0.5).to(dtype))
        return published(kind, parts, columns, *stack, divided=len(parts) == 1)

    inner, wide, experts = shape.intermediate, shape.shared_intermediate, shape.experts
    return MoeWeights(
        router=(noise(1, experts, hidden) / hidden**0.5).to(dtype),
        gate_up=matrix(routed, (inner, inner), hidden, experts),
        down=matrix(routed, (hidden,), inner, experts),
        shared=MlpWeights(matrix(shared, (wide, wide), hidden), matrix(shared, (hidden,), wide)),
        shared_gate=(noise(2, 1, hidden) / hidden**0.5).to(dtype),
    )


def on_device(weights: MoeWeights, device: torch.device) -> MoeWeights:
    """Return the weights in the kernels' layout."""
    shared = weights.shared
    return MoeWeights(
        router=weights.router.to(device),
        gate_up=laid_out(weights.gate_up, device),
        down=laid_out(weights.down, device),
        shared=MlpWeights(laid_out(shared.gate_up, device), laid_out(shared.down, device)),
        shared_gate=weights.shared_gate.to(device),
    )


def exact(matrix: Matrix) -> Matrix:
    """Return the matrix's numbers as float32."""
    return Matrix.of(matrix.plain.float() if matrix.is_plain else numbers(matrix))


def naive_shared(x: Tensor, weights: MoeWeights) -> Tensor:
    """Return the shared expert's part, on the CPU in float32."""
    shared, gate = weights.shared, weights.shared_gate.float()
    return gated_shared(x.float(), exact(shared.gate_up), exact(shared.down), gate)


def naive(x: Tensor, weights: MoeWeights, config: DeltaNetConfig) -> Tensor:
    """Return the layer's result on the CPU in float32."""
    assert isinstance(config.feed_forward, MoeShape)
    x = x.float()
    shares, experts = route(x, weights.router.float(), config.feed_forward.chosen)
    routed = mixture(x, exact(weights.gate_up), exact(weights.down), shares, experts)
    return routed + naive_shared(x, weights)
