"""Rounding of bfloat16 states in PyTorch: without bias, and a function of layer, head, tokens and
element alone."""

import pytest
import torch
from torch import Tensor

from tasuki.model.config import DeltaNetConfig
from tasuki.model.families.qwen3_5.cuts import Qwen35Cuts
from tasuki.model.families.registry import published_or_folder
from tasuki.model.ops.gdn.reference import GdnPlans, gated_delta_rule
from tasuki.model.ops.gdn.reference_rounding import StateNoise, chunk_bounds
from tasuki.model.ops.norm.reference import l2_norm
from tasuki.model.weights.shard import Shard

HALF = torch.bfloat16
COUNTS = 4000


def random_states(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(7))


def test_errors_have_mean_zero_and_numbers_of_bfloat16_stay() -> None:
    states = random_states(1, 2, 4, 8)
    many = states.expand(COUNTS, -1, -1, -1).contiguous()
    got = StateNoise(2).rounded(many, torch.arange(COUNTS)).double()
    below, above = got.amin(0), got.amax(0)
    assert ((below < states[0]) & (states[0] < above)).all()
    unit = above - below
    # The mean of n errors of at most one unit; five standard deviations.
    assert ((got.mean(0) - states[0].double()).abs() <= 5 * 0.5 * unit / COUNTS**0.5).all()
    exact = states.to(HALF).float()
    assert torch.equal(StateNoise(2).rounded(exact, torch.tensor([9])), states.to(HALF))


def test_noise_is_uniform_and_elements_are_independent() -> None:
    noise = StateNoise(1).noise(torch.arange(COUNTS), 2, 4, 16).double() / 2**16
    assert float(noise.min()) >= 0 and float(noise.max()) < 1
    counts = torch.histc(noise, 64, 0, 1) / noise.numel()
    assert ((counts * 64 - 1).abs() < 5 * (64 / noise.numel()) ** 0.5).all()
    # Each element over tokens, and the next token's noise: no two go together.
    columns = torch.cat([noise[:-1].flatten(1), noise[1:].flatten(1)], dim=1)
    found = torch.corrcoef(columns.T) - torch.eye(columns.shape[1], dtype=torch.float64)
    assert float(found.abs().max()) < 6.5 / COUNTS**0.5
    assert float(found.square().mean() * COUNTS) == pytest.approx(1, abs=0.1)


def test_noise_depends_on_layer_head_and_tokens_alone() -> None:
    counts = torch.tensor([5, 700, 262143])
    whole = StateNoise(3).noise(counts, 8, 4, 4)
    for first in (0, 4):
        part = StateNoise(3, first).noise(counts.flip(0), 4, 4, 4)
        assert torch.equal(part.flip(0), whole[:, first : first + 4])
    assert StateNoise(3).noise(counts, 8, 4, 5).shape == (3, 8, 4, 5)
    others = [StateNoise(4).noise(counts, 8, 4, 4), StateNoise(3).noise(counts + 1, 8, 4, 4)]
    assert all((other == whole).double().mean() < 0.01 for other in others)


@pytest.mark.parametrize("before", [None, 0, 37, 64])
def test_chunks_end_at_multiples_of_64_tokens(before: int | None) -> None:
    bounds = chunk_bounds(3, 200, before)
    assert [begin for begin, _ in bounds] == [3, *(stop for _, stop in bounds[:-1])]
    assert bounds[-1][1] == 200
    first = 3 if before is None else -before
    assert all((stop - first) % 64 == 0 for _, stop in bounds[:-1])
    assert max(stop - begin for begin, stop in bounds) <= 64


def rule_inputs(tokens: int) -> tuple[Tensor, ...]:
    q, k, v = random_states(3, tokens, 2, 16).unbind(0)
    gates = random_states(2, tokens, 2)
    return l2_norm(q), l2_norm(k), v, -0.01 * gates[0].abs(), gates[1].sigmoid()


def run_prompt(inputs: tuple[Tensor, ...], *ends: int) -> Tensor:
    """Run a prompt in forwards up to each of `ends`, and return its state."""
    pool, begin = torch.zeros(1, 2, 16, 16, dtype=HALF), 0
    for end in ends:
        saves = ((0, end - begin, 0),)
        plans = GdnPlans((end - begin,), torch.tensor([0]), saves, (begin,), frozenset())
        own = (x[begin:end] for x in inputs)
        gated_delta_rule(*own, pool, plans.of_states(HALF), StateNoise(1))
        begin = end
    return pool[0].float()


def test_a_prompt_cut_at_64_tokens_is_the_whole_one() -> None:
    inputs = rule_inputs(200)
    assert torch.equal(run_prompt(inputs, 64, 128, 200), run_prompt(inputs, 200))


def test_a_prompt_cut_elsewhere_has_one_rounding_more() -> None:
    """See the kernels' test of this name."""
    inputs = rule_inputs(128)
    whole, cut = run_prompt(inputs, 128), run_prompt(inputs, 37, 128)
    middle = run_prompt(inputs, 37)
    assert not torch.equal(whole, cut)
    # At 37 tokens in one, and at 64 and 128 in both.
    sizes = middle.norm() + 2 * run_prompt(inputs, 64).norm() + 2 * whole.norm()
    assert float((whole - cut).norm()) <= 2**-7 * float(sizes)


def test_a_slow_decay_is_kept_in_the_mean() -> None:
    """A decay of 0.1% a token is below half a unit of bfloat16. Rounding to the nearest number
    would leave the state unchanged forever."""
    tokens, rate = 2000, -0.001
    pool = torch.ones(1, 2, 16, 16, dtype=HALF)
    q, k, v, g, beta = rule_inputs(tokens)
    inputs = q, k, v, torch.full_like(g, rate), torch.zeros_like(beta)
    plans = GdnPlans((tokens,), torch.tensor([0]), ((0, tokens, 0),), (0,), frozenset({0}))
    gated_delta_rule(*inputs, pool, plans.of_states(HALF), StateNoise(1))
    assert torch.equal(
        (torch.ones(1) * torch.tensor(rate).exp()).to(HALF), torch.ones(1, dtype=HALF)
    )
    assert float(pool.float().mean()) == pytest.approx(
        float(torch.tensor(rate * tokens).exp()), rel=0.05
    )


def test_ranks_have_the_numbers_of_their_heads() -> None:
    config = published_or_folder("9b")
    assert isinstance(config, DeltaNetConfig)
    parts = [Qwen35Cuts(config).part(Shard(rank, 4)) for rank in range(4)]
    assert [part.first_value_head for part in parts] == [0, 8, 16, 24]
