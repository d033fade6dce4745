"""The mixture of experts against the CPU path, outputs poisoned first: the choice of experts, the
order of pairs, the row kernels and the layer."""

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from tasuki.model.config import ModelConfig, MoeShape
from tasuki.model.ops.linear.gemv import Stream
from tasuki.model.ops.moe.experts import moe
from tasuki.model.ops.moe.gemv import moe_gemv
from tasuki.model.ops.moe.permute import permute, unpermute
from tasuki.model.ops.moe.permute_index import permute_index
from tasuki.model.ops.moe.reference import (
    gated_shared,
    mixture,
    naive_gate_sigmoid_mul_add,
    naive_permute,
    naive_permute_index,
    naive_unpermute,
    route,
)
from tasuki.model.ops.moe.router import choose
from tasuki.model.ops.moe.shared_gate import fused_gate_sigmoid_mul_add
from tasuki.model.weights.layers import MlpWeights, MoeWeights
from tasuki.model.weights.matrix import Matrix
from tests.harness.model_shapes import MOE

from .tensors import count

# Tokens, experts, chosen: sizes that fill no tile, more runs than one step, a published shape.
SHAPES = [(1, 16, 4), (7, 5, 5), (33, 16, 1), (40, 256, 8), (9, 512, 10)]


def naive_choice(logits: torch.Tensor, chosen: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Sorted stably, which breaks ties as the kernel does; `route` leaves them open."""
    order = logits.float().sort(dim=-1, descending=True, stable=True)
    weights = order.values[:, :chosen].softmax(dim=-1)
    return weights, order.indices[:, :chosen]


@pytest.mark.parametrize(("tokens", "experts", "chosen"), SHAPES)
def test_choice_agrees_with_the_twin(
    tokens: int, experts: int, chosen: int, device: torch.device
) -> None:
    torch.manual_seed(tokens)
    x, router = torch.randn(tokens, 32), torch.randn(experts, 32)
    weights, ids = route(x, router, chosen)
    logits = torch.nn.functional.linear(x, router).to(device)
    got = choose(logits, chosen, count(tokens, device))
    torch.testing.assert_close(got.weights.cpu(), weights)
    assert got.experts.tolist() == ids.tolist()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_equal_logits_go_to_the_lowest_expert(dtype: torch.dtype, device: torch.device) -> None:
    torch.manual_seed(1)
    logits = (2 * torch.randn(20, 24)).round().to(dtype)
    logits[0] = 0
    logits[1] = -torch.inf
    logits[1, 20:] = 1
    weights, ids = naive_choice(logits, 6)
    got = choose(logits.to(device), 6, count(20, device))
    assert got.experts.tolist() == ids.tolist()
    torch.testing.assert_close(got.weights.cpu(), weights)


def test_choice_of_nan_is_a_valid_expert(device: torch.device) -> None:
    logits = torch.full((2, 12), torch.nan, device=device)
    got = choose(logits, 3, count(2, device))
    assert all(len(set(row)) == 3 and max(row) < 12 for row in got.experts.tolist())


@pytest.mark.parametrize(("tokens", "experts", "chosen"), [*SHAPES, (2100, 16, 8)])
def test_pairs_are_sorted_by_expert_then_token(
    tokens: int, experts: int, chosen: int, device: torch.device
) -> None:
    torch.manual_seed(tokens)
    ids = torch.rand(tokens, experts).argsort(dim=-1)[:, :chosen].int()
    permutation = permute_index(ids.to(device), experts, count(tokens, device))
    positions, ends = naive_permute_index(ids, experts)
    assert permutation.positions.tolist() == positions.tolist()
    assert permutation.ends.tolist() == ends.tolist()


def test_rows_past_the_count_take_no_place(device: torch.device) -> None:
    torch.manual_seed(4)
    logits = torch.randn(70, 16)
    logits[41:] = torch.nan
    rows = count(41, device)
    choice = choose(logits.to(device), 4, rows)
    ids = choice.experts.clone()
    ids[41:] = -(2**31)
    permutation = permute_index(ids, 16, rows)
    positions, ends = naive_permute_index(choice.experts[:41].cpu(), 16)
    assert permutation.positions[:41].tolist() == positions.tolist()
    assert permutation.ends.tolist() == ends.tolist()
    assert int(permutation.ends[-1]) == 41 * 4


pytestmark = pytest.mark.usefixtures("poisoned_empty")
CONFIG = replace(MOE, feed_forward=MoeShape(6, 2, 24, 40))


# Batches above this take the grouped products: both paths become short enough to interpret.
FEW_TOKENS = 4


@pytest.fixture(autouse=True)
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tasuki.model.ops.moe.experts.MOST_GEMV_TOKENS", FEW_TOKENS)
    # Tiny matrices have several blocks of columns, as published ones do.
    monkeypatch.setattr("tasuki.model.ops.moe.gemv._PLAIN", Stream(4, 32, 2))


def random_layer(config: ModelConfig, dtype: torch.dtype, device: torch.device) -> MoeWeights:
    """Row-major, near unit gain."""
    shape, hidden = config.feed_forward, config.hidden
    assert isinstance(shape, MoeShape)

    def numbers(*size: int) -> Tensor:
        return (torch.randn(*size) / size[-1] ** 0.5).to(dtype).to(device)

    def matrix(*size: int) -> Matrix:
        return Matrix.of(numbers(*size))

    return MoeWeights(
        router=numbers(shape.experts, hidden),
        gate_up=matrix(shape.experts, 2 * shape.intermediate, hidden),
        down=matrix(shape.experts, hidden, shape.intermediate),
        shared=MlpWeights(
            matrix(2 * shape.shared_intermediate, hidden), matrix(hidden, shape.shared_intermediate)
        ),
        shared_gate=numbers(1, hidden),
    )


def in_float(weights: MoeWeights) -> MoeWeights:
    """The same values on the CPU in float32."""

    def exact(matrix: Matrix) -> Matrix:
        return Matrix.of(matrix.plain.float().cpu())

    return MoeWeights(
        router=weights.router.float().cpu(),
        gate_up=exact(weights.gate_up),
        down=exact(weights.down),
        shared=MlpWeights(exact(weights.shared.gate_up), exact(weights.shared.down)),
        shared_gate=weights.shared_gate.float().cpu(),
    )


def naive_moe(x: Tensor, weights: MoeWeights, config: ModelConfig) -> Tensor:
    """What the CPU path does, on the CPU in float32."""
    assert isinstance(config.feed_forward, MoeShape)
    weights, x = in_float(weights), x.float().cpu()
    shares, experts = route(x, weights.router, config.feed_forward.chosen)
    routed = mixture(x, weights.gate_up, weights.down, shares, experts)
    shared = weights.shared
    return routed + gated_shared(x, shared.gate_up, shared.down, weights.shared_gate)


def shaped(hidden: int, experts: int, chosen: int, inner: int, shared: int) -> ModelConfig:
    return replace(CONFIG, hidden=hidden, feed_forward=MoeShape(experts, chosen, inner, shared))


@pytest.mark.parametrize(
    ("tokens", "config"),
    [
        *((tokens, shaped(48, 6, 2, 24, 40)) for tokens in (1, 2)),
        *((tokens, shaped(40, 20, 5, 16, 8)) for tokens in (1, 2)),
        *((tokens, shaped(24, 3, 3, 40, 16)) for tokens in (1, 2)),
        # float32 takes any number of tokens in one way.
        (FEW_TOKENS + 2, shaped(16, 4, 1, 8, 8)),
    ],
    ids=lambda value: value if isinstance(value, int) else f"hidden{value.hidden}",
)
def test_float32_layer_agrees_with_the_twin(
    tokens: int, config: ModelConfig, device: torch.device
) -> None:
    torch.manual_seed(tokens)
    weights = random_layer(config, torch.float32, device)
    wide = torch.randn(tokens, config.hidden + 8)
    got = moe(wide.to(device)[:, : config.hidden], weights, config, count(tokens, device))
    want = naive_moe(wide[:, : config.hidden], weights, config)
    torch.testing.assert_close(got.cpu(), want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("tokens", [2, FEW_TOKENS + 5])
def test_bf16_paths_agree_with_the_twin(tokens: int, device: torch.device) -> None:
    torch.manual_seed(tokens)
    weights = random_layer(CONFIG, torch.bfloat16, device)
    x = torch.randn(tokens, CONFIG.hidden).bfloat16()
    got = moe(x.to(device), weights, CONFIG, count(tokens, device)).float().cpu()
    want = naive_moe(x, weights, CONFIG)
    # A near tie of bf16 logits may choose another expert, so rows are compared, most of them.
    error = (got - want).norm(dim=-1) / want.norm(dim=-1)
    assert float(error.median()) < 0.01
    assert int((error > 0.02).sum()) <= tokens // 10


def part_of(weights: MoeWeights, held: range) -> MoeWeights:
    """What a rank that has those experts has of a layer; of the shared one, all."""
    taken = slice(held.start, held.stop)
    gate_up, down = (Matrix.of(each.plain[taken]) for each in (weights.gate_up, weights.down))
    return replace(weights, gate_up=gate_up, down=down)


@pytest.mark.filterwarnings("ignore:(invalid value|overflow) encountered")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("tokens", [2, FEW_TOKENS + 5])
def test_ranks_with_experts_of_their_own_add_up_to_all(
    tokens: int, dtype: torch.dtype, device: torch.device
) -> None:
    torch.manual_seed(tokens)
    config = shaped(40, 5, 3, 16, 8)
    shape = config.feed_forward
    assert isinstance(shape, MoeShape)
    weights = random_layer(config, dtype, device)
    x = torch.randn(tokens, config.hidden).to(dtype).to(device)
    rows = count(tokens, device)
    want = moe(x, weights, config, rows).float()
    # The shared expert, which each of these has whole, once less.
    shared = weights.shared
    gated = gated_shared(
        x.float().cpu(),
        Matrix.of(shared.gate_up.plain.float().cpu()),
        Matrix.of(shared.down.plain.float().cpu()),
        weights.shared_gate.float().cpu(),
    )
    total = -gated.to(device)
    for held in (range(2), range(2, 5)):
        of_rank = replace(config, feed_forward=replace(shape, held=held))
        total += moe(x, part_of(weights, held), of_rank, rows).float()
    bound = 1e-5 if dtype is torch.float32 else 0.03
    torch.testing.assert_close(total, want, rtol=bound, atol=bound)


def test_the_choice_of_a_rank_is_that_of_all(device: torch.device) -> None:
    torch.manual_seed(2)
    logits, rows = torch.randn(9, 12, device=device), count(9, device)
    whole = choose(logits, 4, rows)
    for held in (range(5), range(5, 12)):
        part = choose(logits, 4, rows, held)
        here = (whole.experts >= held.start) & (whole.experts < held.stop)
        assert torch.equal(part.experts[here], whole.experts[here] - held.start)
        assert torch.equal(part.weights[here], whole.weights[here])
        assert bool((part.experts[~here] == len(held)).all() and (part.weights[~here] == 0).all())


# numpy, which interprets kernels on a CPU, reports arithmetic on what padding holds.
@pytest.mark.filterwarnings("ignore:(invalid value|overflow) encountered")
def test_rows_past_the_count_change_nothing(device: torch.device) -> None:
    torch.manual_seed(5)
    weights = random_layer(CONFIG, torch.bfloat16, device)
    for tokens in (4, FEW_TOKENS + 8):
        x = torch.randn(tokens, CONFIG.hidden, device=device).bfloat16()
        x[tokens - 2 :] = math.nan
        padded = moe(x, weights, CONFIG, count(tokens - 2, device))[: tokens - 2]
        alone = moe(x[: tokens - 2], weights, CONFIG, count(tokens - 2, device))
        assert bool(padded.isfinite().all())
        torch.testing.assert_close(padded, alone, rtol=0, atol=0)


def test_a_token_does_not_depend_on_the_others(device: torch.device) -> None:
    torch.manual_seed(6)
    weights = random_layer(CONFIG, torch.float32, device)
    x = torch.randn(2, CONFIG.hidden, device=device)
    together = moe_gemv(x, weights, 2, count(2, device))
    for row in range(2):
        alone = moe_gemv(x[row : row + 1], weights, 2, count(1, device))
        assert torch.equal(alone[0], together[row])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rows_are_spread_and_combined_as_by_the_twins(
    dtype: torch.dtype, device: torch.device
) -> None:
    torch.manual_seed(7)
    tokens, chosen, hidden = 5, 3, 20
    x = torch.randn(tokens, hidden + 4).to(dtype)[:, :hidden]
    positions = torch.randperm(tokens * chosen).view(tokens, chosen).int()
    weights = torch.rand(tokens, chosen)
    there, rows = positions.to(device), count(tokens, device)
    pairs = permute(x.to(device), there, rows)
    assert torch.equal(pairs.cpu(), naive_permute(x, positions))
    got = unpermute(pairs, there, weights.to(device), rows)
    torch.testing.assert_close(got.cpu(), naive_unpermute(pairs.cpu(), positions, weights))
    few = unpermute(pairs, there, weights.to(device), count(2, device))
    assert torch.equal(few[:2], got[:2])
    assert bool(few[2:].isnan().all())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_shared_gate_agrees_with_the_twin(dtype: torch.dtype, device: torch.device) -> None:
    torch.manual_seed(9)
    wide = torch.randn(3, 4, 56).to(dtype)
    x, shared, routed = (plane[:, :50] for plane in wide)
    gate = (torch.randn(1, 50) / 7).to(dtype)
    on_device = (tensor.to(device) for tensor in (x, gate, shared, routed))
    got = fused_gate_sigmoid_mul_add(*on_device, count(3, device))
    want = naive_gate_sigmoid_mul_add(x.float(), gate.float(), shared.float(), routed.float())
    torch.testing.assert_close(got.cpu()[:3], want.to(dtype)[:3])
    assert bool(got[3:].isnan().all())


@pytest.mark.skipif(not torch.cuda.is_available(), reason="a second stream needs a GPU")
def test_a_second_stream_and_a_graph_change_nothing() -> None:
    torch.manual_seed(10)
    device, tokens = torch.device("cuda"), FEW_TOKENS + 9
    weights = random_layer(CONFIG, torch.bfloat16, device)
    x = torch.randn(tokens, CONFIG.hidden, device=device).bfloat16()
    rows, side = count(tokens, device), torch.cuda.Stream()
    want = moe(x, weights, CONFIG, rows)
    assert torch.equal(moe(x, weights, CONFIG, rows, side), want)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = moe(x, weights, CONFIG, rows, side)
    x.copy_(torch.randn(tokens, CONFIG.hidden, device=device))
    want = moe(x, weights, CONFIG, rows)
    for _ in range(3):
        captured.fill_(math.nan)
        graph.replay()
        assert torch.equal(captured, want)
