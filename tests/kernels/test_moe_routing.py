"""Expert choice and the order of pairs against plain torch, on unaligned sizes and ties."""

import pytest
import torch
from tasuki.model.ops.moe.permute_index import permute_index
from tasuki.model.ops.moe.reference import naive_permute_index, route
from tasuki.model.ops.moe.router import choose

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
