"""Mixture of experts in PyTorch: a softmax router, the chosen experts, and a gated shared expert.

A function named naive_* is the reference of one kernel; no forward uses it.
"""

import torch
from torch import Tensor
from torch.nn import functional

from tasuki.model.ops.linear.reference import EXACT, Products
from tasuki.model.weights.matrix import Matrix


def route(x: Tensor, router: Tensor, chosen: int) -> tuple[Tensor, Tensor]:
    """Choose the experts of each token. Return weights [T, chosen] float32, renormalised to sum 1,
    and expert ids [T, chosen] int64.

    x: [T, hidden]; router: [experts, hidden].
    """
    probabilities = functional.linear(x, router).float().softmax(dim=-1)
    weights, experts = probabilities.topk(chosen, dim=-1)
    return weights / weights.sum(dim=-1, keepdim=True), experts


def mixture(
    x: Tensor,
    gate_up: Matrix,
    down: Matrix,
    weights: Tensor,
    experts: Tensor,
    first: int = 0,
    products: Products = EXACT,
) -> Tensor:
    """Return the weighted sum of the chosen experts held by this rank, [T, hidden].

    x: [T, hidden]. gate_up: [held, 2 * intermediate, hidden]. down: [held, hidden, intermediate].
    Both hold the experts from number `first` on. weights, experts [T, chosen]: routing weights and
    expert ids. products: products with the experts' matrices.
    """
    tokens, chosen = experts.shape
    held = gate_up.shape[0]
    order = experts.flatten().argsort(stable=True)
    counts = experts.flatten().bincount(minlength=first + held).tolist()
    gathered = x[order // chosen]
    # Every (token, choice) pair has its own row, and the sum over choices has a fixed order. So a
    # token's result does not depend on other tokens with the same expert.
    pairs = torch.empty_like(gathered)
    begin = sum(counts[:first])
    end = begin + sum(counts[first : first + held])
    pairs[order[:begin]] = 0
    pairs[order[end:]] = 0
    for expert, count in enumerate(counts[first : first + held]):
        if count:
            rows = gathered[begin : begin + count]
            pairs[order[begin : begin + count]] = products.swiglu(
                rows, gate_up[expert], down[expert]
            )
            begin += count
    pairs = pairs.view(tokens, chosen, -1)
    return (pairs * weights.to(x.dtype)[..., None]).sum(dim=1)


def gated_shared(
    x: Tensor, gate_up: Matrix, down: Matrix, gate: Tensor, products: Products = EXACT
) -> Tensor:
    """Return the shared expert's output for x, times sigmoid(gate . x): [T, hidden]. gate: [1,
    hidden]. products: products with the expert's matrices."""
    return functional.linear(x, gate).sigmoid() * products.swiglu(x, gate_up, down)


def naive_permute_index(experts: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Return (positions, ends) as permute_index() does; all tokens are valid."""
    flat = experts.flatten().long()
    positions = flat.argsort(stable=True).argsort()
    ends = flat.bincount(minlength=count).cumsum(0)
    return positions.view_as(experts).int(), ends.int()


def naive_permute(x: Tensor, positions: Tensor) -> Tensor:
    """Return rows sorted by expert, as permute() does; all tokens are valid."""
    pairs = torch.empty(positions.numel(), x.shape[1], dtype=x.dtype, device=x.device)
    pairs[positions.flatten().long()] = x.repeat_interleave(positions.shape[1], dim=0)
    return pairs


def naive_unpermute(pairs: Tensor, positions: Tensor, weights: Tensor) -> Tensor:
    """Return the sums of the rows brought back, as unpermute() does; all tokens are valid."""
    gathered = pairs[positions.long()].float()
    return (gathered * weights[..., None]).sum(dim=1).to(pairs.dtype)


def naive_gate_sigmoid_mul_add(x: Tensor, gate: Tensor, shared: Tensor, routed: Tensor) -> Tensor:
    """Return routed + sigmoid(gate . x) * shared. x, shared and routed are [T, hidden]; gate is [1,
    hidden]."""
    return routed + functional.linear(x, gate).sigmoid() * shared
