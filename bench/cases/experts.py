"""Cases of a mixture of experts: grouping (token, expert) pairs by expert, moving rows, and the
whole block."""

from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor

from tasuki.model.config import DeltaNetConfig, MoeShape
from tasuki.model.forward import Activations
from tasuki.model.ops.moe.experts import moe
from tasuki.model.ops.moe.permute import permute, unpermute
from tasuki.model.ops.moe.permute_index import permute_index
from tasuki.model.ops.moe.reference import (
    naive_gate_sigmoid_mul_add,
    naive_permute,
    naive_unpermute,
)
from tasuki.model.ops.moe.router import choose
from tasuki.model.ops.moe.shared_gate import fused_gate_sigmoid_mul_add
from tasuki.model.weights.layers import MlpWeights, MoeWeights
from tasuki.model.weights.matrix import Matrix
from tasuki.model.weights.source import RandomSource

from .case import Case, Stage, Turn, beside_twin, delta_net

_BLOCK_TURNS = 16


def cases(stage: Stage) -> Iterator[Case]:
    for experts, chosen in ((256, 8), (512, 10)):
        for tokens in (128, 1024, 8192):
            yield _placing(stage, experts, chosen, tokens)
    for tokens in (4096, 16384):
        yield from _rows(stage, delta_net("35b-a3b"), tokens)
    config = delta_net("35b-a3b")
    weights = _weights(stage, config)
    for tokens in (1, 4, 16, 64, 512, 4096):
        yield block_case(stage, config, weights, tokens)


def _placing(stage: Stage, experts: int, chosen: int, tokens: int) -> Case:
    logits = stage.random(tokens, experts)
    rows = stage.rows(tokens)
    unfused = partial(_unfused_placing, logits, chosen)
    return Case(
        f"index shuffling, {experts} experts top {chosen}, {tokens} tokens",
        [lambda: permute_index(choose(logits, chosen, rows).experts, experts, rows)] * 16,
        bytes=logits.nbytes + 12 * tokens * chosen + 4 * experts,
        captured={"same ops captured": [unfused] * 16},
        eager={"eager ops": unfused},
        ratios={"eager ops": 4.0},
    )


def _unfused_placing(logits: Tensor, chosen: int) -> tuple[Tensor, ...]:
    """Choose each token's experts and place the (token, expert) pairs by expert, with PyTorch
    operators and no wait for the host. Returns routing weights, positions and group ends, like the
    kernels."""
    tokens, experts = logits.shape
    weights, ids = logits.float().softmax(dim=-1).topk(chosen, dim=-1)
    weights = weights / weights.sum(dim=-1, keepdim=True)
    flat = ids.flatten()
    order = flat.argsort(stable=True)
    ranks = torch.arange(tokens * chosen, device=logits.device)
    positions = torch.empty_like(flat).scatter_(0, order, ranks)
    counts = torch.zeros(experts, dtype=torch.int64, device=logits.device)
    ends = counts.scatter_add_(0, flat, torch.ones_like(flat)).cumsum(0)
    return weights, positions, ends


def _rows(stage: Stage, config: DeltaNetConfig, tokens: int) -> Iterator[Case]:
    shape = _shape(config)
    hidden, chosen = config.hidden, shape.chosen
    rows = stage.rows(tokens)
    choice = choose(stage.random(tokens, shape.experts), chosen, rows)
    positions = permute_index(choice.experts, shape.experts, rows).positions
    weights = choice.weights
    gate = stage.random(1, hidden)
    one = 2 * tokens * hidden
    indices = 4 * positions.numel()

    def spreading() -> Turn:
        x = stage.random(tokens, hidden)
        return partial(permute, x, positions, rows), (x, positions)

    def combining() -> Turn:
        pairs = stage.random(tokens * chosen, hidden)
        return partial(unpermute, pairs, positions, weights, rows), (pairs, positions, weights)

    def gating() -> Turn:
        x, shared, routed = (stage.random(tokens, hidden) for _ in range(3))
        work = partial(fused_gate_sigmoid_mul_add, x, gate, shared, routed, rows)
        return work, (x, gate, shared, routed)

    size = f"{tokens} tokens of {hidden}"
    spread_bytes = one * (1 + chosen) + indices
    yield beside_twin(f"spread to {chosen} experts, {size}", spreading, naive_permute, spread_bytes)
    yield beside_twin(
        f"combine of {chosen} experts, {size}", combining, naive_unpermute, spread_bytes + indices
    )
    yield beside_twin(
        f"gate, sigmoid, multiply, add, {size}", gating, naive_gate_sigmoid_mul_add, 4 * one
    )


def block_case(
    stage: Stage,
    config: DeltaNetConfig,
    weights: MoeWeights,
    tokens: int,
    *,
    activations: Activations = Activations.MODEL,
    turns: int = _BLOCK_TURNS,
) -> Case:
    """Return the case of a whole mixture-of-experts block of the model 35B-A3B."""
    shape = _shape(config)
    inputs = [stage.random(tokens, config.hidden) for _ in range(turns)]
    rows = stage.rows(tokens)
    touched = 1 - (1 - shape.chosen / shape.experts) ** tokens
    routed = weights.gate_up.nbytes + weights.down.nbytes
    shared = weights.shared.gate_up.nbytes + weights.shared.down.nbytes
    always = shared + weights.router.nbytes + weights.shared_gate.nbytes
    inner = shape.chosen * shape.intermediate + shape.shared_intermediate
    side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    return Case(
        f"experts of 35b-a3b, {tokens} tokens",
        [partial(moe, x, weights, config, rows, side, activations) for x in inputs],
        bytes=routed * touched + always + 2 * inputs[0].nbytes,
        flops=2.0 * tokens * config.hidden * (3 * inner + shape.experts),
    )


def _weights(stage: Stage, config: DeltaNetConfig) -> MoeWeights:
    """Return random expert weights in row-major order, like the engine's on a GPU."""
    shape, hidden = _shape(config), config.hidden
    source = RandomSource(1, stage.device)

    def read(*size: int) -> Tensor:
        return source.read(f"{size}", size, torch.bfloat16)

    def matrix(*size: int) -> Matrix:
        return Matrix.of(read(*size))

    inner, shared = shape.intermediate, shape.shared_intermediate
    return MoeWeights(
        router=read(shape.experts, hidden),
        gate_up=matrix(shape.experts, 2 * inner, hidden),
        down=matrix(shape.experts, hidden, inner),
        shared=MlpWeights(matrix(2 * shared, hidden), matrix(hidden, shared)),
        shared_gate=read(1, hidden),
    )


def _shape(config: DeltaNetConfig) -> MoeShape:
    assert isinstance(config.feed_forward, MoeShape)
    return config.feed_forward
