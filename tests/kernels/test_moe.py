"""Parts of the mixture of experts compared with the CPU path, with poisoned outputs. Parts: the
choice of experts, the order of pairs, their spread, and the shared expert's gate."""

import pytest
import torch

from tasuki.model.ops.moe.permute import permute, unpermute
from tasuki.model.ops.moe.permute_index import permute_index
from tasuki.model.ops.moe.reference import (
    naive_gate_sigmoid_mul_add,
    naive_permute,
    naive_permute_index,
    naive_unpermute,
    route,
)
from tasuki.model.ops.moe.router import choose
from tasuki.model.ops.moe.shared_gate import fused_gate_sigmoid_mul_add

from .tensors import count

pytestmark = pytest.mark.usefixtures("poisoned_empty")
# Tokens, experts, chosen: sizes that fill no tile, more runs than one step, a published shape.
SHAPES = [(1, 16, 4), (7, 5, 5), (33, 16, 1), (40, 256, 8), (9, 512, 10)]


def naive_choice(logits: torch.Tensor, chosen: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the choice by a stable sort. It breaks ties as the kernel does; `route` leaves them
    open."""
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
