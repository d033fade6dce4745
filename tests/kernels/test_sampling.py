"""The in-graph sampler against model/ops/sampling/reference.py: same noise, tokens, logprobs and
margins."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch

from tasuki.model.grammar.constraint import Constraint, Mask, keep_only
from tasuki.model.ops.sampling import sample as sampling_sample
from tasuki.model.ops.sampling import top_k_top_p as sampling_cut
from tasuki.model.ops.sampling.gumbel import gumbel, noise_key
from tasuki.model.ops.sampling.logit_adjustments import (
    AdjustedRows,
    LogitAdjuster,
    TokensBefore,
    adjusted,
)
from tasuki.model.ops.sampling.params import MAX_TOP_K, MIN_TOP_P, SamplingParams
from tasuki.model.ops.sampling.reference import Sampled
from tasuki.model.ops.sampling.reference import sample as naive_sample
from tasuki.model.ops.sampling.sample import Draws, sample
from tasuki.model.ops.sampling.sample_adjusted import sample_adjusted
from tasuki.model.ops.sampling.slice import Slice
from tasuki.model.ops.sampling.top_k_top_p import cut
from tests.harness.covering import every_value

from .tensors import count

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


@pytest.fixture
def runs(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> int:
    """Return the tokens of a run; the interpreter is slow unless they are few."""
    if device.type == "cuda":
        return sampling_cut.RUN
    for module in (sampling_sample, sampling_cut):
        monkeypatch.setattr(module, "RUN", 128)
    monkeypatch.setattr(sampling_cut, "_STEP", 64)
    return 128


def prepared(params: list[SamplingParams], positions: list[int], device: torch.device) -> Draws:
    draws = Draws.empty(len(params), device)
    draws.temperature.copy_(torch.tensor([item.temperature for item in params]))
    draws.top_k.copy_(torch.tensor([item.top_k for item in params]))
    draws.top_p.copy_(torch.tensor([item.top_p for item in params]))
    draws.keys.copy_(torch.tensor([noise_key(item.seed) for item in params]))
    draws.positions.copy_(torch.tensor(positions))
    draws.token.fill_(-7)
    draws.logprob.fill_(math.nan)
    draws.margin.fill_(math.nan)
    return draws


def results(draws: Draws) -> list[Sampled]:
    columns = (draws.token.tolist(), draws.logprob.tolist(), draws.margin.tolist())
    return [Sampled(*row) for row in zip(*columns, strict=True)]


def assert_same(got: list[Sampled], want: list[Sampled]) -> None:
    for mine, twin in zip(got, want, strict=True):
        if twin.margin > 1e-4:
            assert mine.token == twin.token
            assert mine.logprob == pytest.approx(twin.logprob, abs=1e-4)
        assert mine.margin == pytest.approx(twin.margin, abs=1e-4)


def drawn(
    logits: torch.Tensor, params: list[SamplingParams], positions: list[int], device: torch.device
) -> list[Sampled]:
    draws = prepared(params, positions, device)
    sample(logits.to(device), draws, count(len(params), device))
    return results(draws)


def drawn_from_a_cut(
    logits: torch.Tensor, params: list[SamplingParams], positions: list[int], device: torch.device
) -> list[Sampled]:
    draws, there = prepared(params, positions, device), logits.to(device)
    sample(there, draws, count(len(params), device), cut(there, draws))
    return results(draws)


def random_logits(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


ANY_KIND = [
    SamplingParams(),
    SamplingParams(temperature=1.0, seed=1),
    SamplingParams(temperature=0.3, seed=-(2**70)),
    SamplingParams(temperature=50.0, seed=2**63),
    SamplingParams(temperature=1.0, seed=2),
]
HEATS = [SamplingParams(temperature=heat, seed=3) for heat in (0.0, 0.5, 1.0)]
PLACES = [0, 1, 70_000, 262_143, 1]
CASES = {
    **{f"{v} tokens": (4 * random_logits(v, 5, v), ANY_KIND, PLACES) for v in (1, 7, 5000)},
    "bf16 in strided rows": (random_logits(1, 3, 130).bfloat16()[:, :100], HEATS, [4, 5, 6]),
    "many positions": (
        random_logits(0, 1, 40).expand(64, -1),
        [SamplingParams(temperature=1.0, seed=5)] * 64,
        list(range(64)),
    ),
}


@pytest.mark.parametrize(("logits", "params", "positions"), CASES.values(), ids=CASES)
def test_draws_agree_with_the_twin(
    logits: torch.Tensor, params: list[SamplingParams], positions: list[int], device: torch.device
) -> None:
    got = drawn(logits, params, positions, device)
    assert_same(got, naive_sample(logits.float(), params, positions))
    if len(positions) == 64:
        assert len({item.token for item in got}) > 10


ADJUSTED = [
    {"allowed_token_ids": (3, 4, 100), "temperature": 1.0},
    {"allowed_token_ids": (130,)},
    {"allowed_token_ids": (7,), "temperature": 1.0, "top_k": 3, "top_p": 0.5},
    {"min_p": 0.9, "temperature": 0.5},
    {"min_p": 0.1, "temperature": 2.0, "top_p": 0.8},
    {"repetition_penalty": 3.0, "presence_penalty": 1.0},
    {"logit_bias": ((150, 90.0), (2, 90.5)), "temperature": 3.0, "top_k": 2},
    {"bad_words": ((1,), (2,), (9, 4)), "temperature": 1.0},
]


@every_value(dtype=DTYPES, some={"with cuts": slice(None), "without": slice(0, 2)})
def test_draws_from_adjusted_logits_agree_with_the_twin(
    dtype: torch.dtype, some: slice, runs: int, device: torch.device
) -> None:
    """Runs of the vocabulary with no allowed token among them."""
    params = [
        SamplingParams(seed=row, **fields)  # type: ignore[arg-type]
        for row, fields in enumerate(ADJUSTED[some])
    ]
    positions = list(range(len(params)))
    logits = random_logits(3, len(params), runs + 40).to(dtype)
    before = TokensBefore(np.array([5, 6], np.int32), np.array([9, 3, 9], np.int32))
    adjusters = [LogitAdjuster(item, frozenset(), runs + 40, before) for item in params]
    rows = AdjustedRows.of(adjusters)
    draws = prepared(params, positions, device)
    cuts = any(item.top_k or item.top_p < 1 for item in params)
    sample_adjusted(
        logits.to(device), rows.to(device), draws, count(len(params), device), cuts=cuts
    )
    twins = naive_sample(logits.float(), params, positions, adjusted(logits, rows))
    assert_same(results(draws), twins)
    assert results(draws)[1].margin == math.inf


class Allowing(Constraint):
    """A constraint that always allows these tokens."""

    def __init__(self, tokens: Sequence[int], vocab: int) -> None:
        self._mask = np.zeros(-(-vocab // 32), dtype=np.int32)
        self._mask = keep_only(~self._mask, tokens)

    def mask(self) -> Mask:
        return self._mask


@every_value(dtype=DTYPES, more={"masks alone": {}, "a bias": {"logit_bias": ((5, 90.0),)}})
def test_draws_under_a_mask_agree_with_the_twin(
    dtype: torch.dtype, more: dict[str, Any], runs: int, device: torch.device
) -> None:
    """Cases: masks that leave nothing of a run of the vocabulary, one that leaves one token, and no
    mask."""
    vocab = 2 * runs + 41
    left = [range(0, vocab, 7), [runs + 3], [2, 5, 2 * runs + 40], [vocab - 1, 0], None, None]
    params = [
        SamplingParams(temperature=0.9 * (row % 2), seed=row, **(more if row == 4 else {}))
        for row in range(len(left))
    ]
    before = TokensBefore(np.zeros(0, np.int32), np.zeros(0, np.int32))
    adjusters = [
        LogitAdjuster(
            item, frozenset(), vocab, before, None if tokens is None else Allowing(tokens, vocab)
        )
        for item, tokens in zip(params, left, strict=True)
    ]
    rows, positions = AdjustedRows.of(adjusters), list(range(len(left)))
    assert rows.masks_alone == (not more)
    logits = random_logits(5, len(left), vocab).to(dtype)
    draws = prepared(params, positions, device)
    there = count(len(left), device)
    sample_adjusted(logits.to(device), rows.to(device), draws, there, cuts=False)
    got = results(draws)
    assert_same(got, naive_sample(logits.float(), params, positions, adjusted(logits, rows)))
    assert got[1].token == runs + 3 and got[1].margin == math.inf
    assert got[2].token in (2, 5, 2 * runs + 40) and got[3].token in (vocab - 1, 0)


def test_ranks_with_a_part_of_the_vocabulary_each_draw_as_one_with_all(
    runs: int, device: torch.device
) -> None:
    """Parts are no whole number of runs; equal scores are on both sides of a border."""
    vocab, rows = 1000, 5
    logits = random_logits(11, rows, vocab).round(decimals=1)
    logits[0, [499, 500, 999]] = 50.0
    params = [SamplingParams(temperature=float(row % 2), seed=row) for row in range(rows)]
    positions = [*range(rows)]
    want = drawn(logits, params, positions, device)
    parts = [logits[:, :500].contiguous().to(device), logits[:, 500:].contiguous().to(device)]
    given: list[torch.Tensor] = []

    def give(found: torch.Tensor) -> torch.Tensor:
        given.append(found.clone())
        return found

    rows_here = count(rows, device)
    for number, part in enumerate(parts):
        draws = prepared(params, positions, device)
        sample(part, draws, rows_here, of=Slice(500 * number, give))
    assert len(given) == 2
    every = torch.cat(given, dim=-1)
    for number, part in enumerate(parts):
        draws = prepared(params, positions, device)
        sample(part, draws, rows_here, of=Slice(500 * number, lambda found: every))
        got = results(draws)
        assert [item.token for item in got] == [item.token for item in want]
        assert_same(got, want)
    assert want[0].token == 499


@every_value(dtype=DTYPES, cuts={"of all": False, "of a cut": True})
def test_draws_from_a_part_of_the_vocabulary_are_those_with_nothing_else_likely(
    dtype: torch.dtype, cuts: bool, runs: int, device: torch.device
) -> None:
    """Each token has its noise from the whole vocabulary."""
    params = [
        SamplingParams(temperature=heat, seed=row, **({"top_k": 9, "top_p": 0.8} if cuts else {}))
        for row, heat in enumerate((0.0, 0.7, 1.0, 3.0))
    ]
    positions = [3, 4, 5, 6]
    logits = random_logits(8, 4, 3 * runs + 5).to(dtype)
    ids = torch.arange(1, logits.shape[1], 2)
    some = logits[:, ids].contiguous().to(device)
    draws = prepared(params, positions, device)
    kept = cut(some, draws) if cuts else None
    sample(some, draws, count(4, device), kept, ids=ids.to(device))
    alone = torch.full(logits.shape, -math.inf)
    alone[:, ids] = logits[:, ids].float()
    assert_same(results(draws), naive_sample(alone, params, positions))
    assert all(draw.token % 2 for draw in results(draws))


def test_equal_scores_go_to_the_lowest_id(device: torch.device) -> None:
    logits = torch.zeros(1, 9000)
    logits[0, [77, 5000, 8999]] = 3.0
    (got,) = drawn(logits, [SamplingParams()], [0], device)
    assert (got.token, got.margin) == (77, 0.0)
    assert naive_sample(logits, [SamplingParams()], [0])[0].token == 77


def test_rows_past_the_count_are_left_alone(device: torch.device) -> None:
    logits = torch.randn(3, 10)
    logits[2] = math.nan
    draws = prepared([SamplingParams()] * 3, [0, 0, 0], device)
    sample(logits.to(device), draws, count(2, device))
    assert draws.token[2] == -7
    assert bool(draws.margin[2].isnan())
    assert_same(results(draws)[:2], naive_sample(logits[:2], [SamplingParams()] * 2, [0, 0]))


def test_a_run_in_which_every_token_is_forbidden_leaves_the_row_sound(
    runs: int, device: torch.device
) -> None:
    logits = 4 * random_logits(2, 3, 3 * runs)
    logits[0, runs : 2 * runs] = -math.inf
    logits[1, : 2 * runs] = -math.inf
    logits[2, : 3 * runs - 1] = -math.inf
    params = [SamplingParams(), SamplingParams(temperature=1.0, seed=4), SamplingParams()]
    got = drawn(logits, params, [5, 6, 7], device)
    want = naive_sample(logits, params, [5, 6, 7])
    assert_same(got[:2], want[:2])
    # One token was left to choose.
    assert got[2].token == want[2].token == 3 * runs - 1
    assert got[2].logprob == want[2].logprob == 0.0


CUTS = [(0, 1.0), (3, 1.0), (0, 0.4), (5, 0.5), (1000, 0.999), (0, MIN_TOP_P), (MAX_TOP_K, 0.9)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_cuts_agree_with_the_twin(dtype: torch.dtype, runs: int, device: torch.device) -> None:
    torch.manual_seed(runs)
    vocab = runs + 40
    # A coarse grid of values, with both zeros, so that ties fall on the edges of the cuts.
    logits = (2 * torch.randn(len(CUTS), vocab)).round().div(2).to(dtype)
    params = [
        SamplingParams(temperature=0.7 + row / 4, top_k=k, top_p=p, seed=row)
        for row, (k, p) in enumerate(CUTS)
    ]
    positions = list(range(len(CUTS)))
    got = drawn_from_a_cut(logits, params, positions, device)
    assert_same(got, naive_sample(logits.float(), params, positions))


def test_a_cut_keeps_the_same_tokens_as_the_twin(runs: int, device: torch.device) -> None:
    torch.manual_seed(9)
    logits = (4 * torch.randn(runs + 70)).round().div(4)
    limits = [(7, 1.0), (0, 0.3), (40, 0.9)]
    draws = prepared(
        [SamplingParams(temperature=1.3, top_k=k, top_p=p) for k, p in limits], [0] * 3, device
    )
    there = logits.expand(3, -1).contiguous().to(device)
    found = cut(there, draws)
    order = logits.sort(descending=True, stable=True)
    for row, (top_k, top_p) in enumerate(limits):
        ranked = order.values.double() / 1.3
        if top_k:
            ranked[top_k:] = -torch.inf
        masses = ranked.softmax(dim=-1)
        kept = (masses.cumsum(dim=-1) - masses < top_p) & ranked.isfinite()
        edge = float(order.values[kept][-1])
        at_edge = int((order.values[kept] == edge).sum())
        bits = torch.tensor(edge).view(torch.int32).item()
        key = (bits ^ (0x7FFFFFFF if bits < 0 else 0)) ^ -(2**31)
        assert (int(found.keys[row]), int(found.left[row])) == (key, at_edge)
        assert int(found.equals[row].sum()) == int((logits == edge).sum())


def test_greedy_rows_may_be_cut(runs: int, device: torch.device) -> None:
    torch.manual_seed(3)
    logits = torch.randn(2, runs)
    params = [SamplingParams(top_k=1), SamplingParams(top_p=0.1)]
    got = drawn_from_a_cut(logits, params, [0, 0], device)
    assert [item.token for item in got] == logits.argmax(dim=-1).tolist()


@pytest.mark.parametrize("top_p", [0.25, 0.5, 0.75])
def test_a_token_at_which_the_mass_is_reached_exactly_is_the_last_kept(
    top_p: float, runs: int, device: torch.device
) -> None:
    """Four equal tokens have a quarter each, in binary too."""
    logits = torch.full((1, runs + 40), -math.inf)
    logits[0, [3, 60, 90, runs + 5]] = 1.0
    draws = prepared([SamplingParams(temperature=1.0, top_p=top_p)], [0], device)
    assert int(cut(logits.to(device), draws).left[0]) == round(4 * top_p)


def broken(vocab: int, at: list[int] | slice, value: float) -> torch.Tensor:
    logits = random_logits(vocab, vocab)
    logits[at] = value
    return logits


@pytest.mark.filterwarnings("ignore:.*:RuntimeWarning")  # from numpy in the interpreter
@pytest.mark.parametrize(
    ("tail", "sampling"),
    [
        (0, SamplingParams()),
        (40, SamplingParams()),
        (40, SamplingParams(temperature=1.0, seed=1, top_k=5, top_p=0.9)),
    ],
    ids=["greedy", "greedy, a tail", "from a cut"],
)
def test_logits_that_are_no_numbers_draw_an_id_of_the_vocabulary_and_say_so(
    tail: int, sampling: SamplingParams, runs: int, device: torch.device
) -> None:
    vocab = 2 * runs + tail
    bad = [
        broken(vocab, slice(None), math.nan),
        broken(vocab, [0], math.nan),
        broken(vocab, [vocab - 1], math.nan),
        broken(vocab, slice(0, runs), math.nan),
        broken(vocab, slice(runs, None), math.nan),
        broken(vocab, slice(1, None), math.nan),
        broken(vocab, [7], math.inf),
        broken(vocab, slice(None), math.inf),
        broken(vocab, slice(None), -math.inf),
    ]
    good = broken(vocab, [], 0.0)
    logits = torch.stack([*bad, good])
    params, positions = [sampling] * len(logits), [4] * len(logits)
    draw = drawn_from_a_cut if sampling.top_k else drawn
    got, twins = draw(logits, params, positions, device), naive_sample(logits, params, positions)
    for rows in (got, twins):
        assert all(0 <= item.token < vocab for item in rows)
        assert not any(math.isfinite(item.logprob) for item in rows[:-1])
    assert_same(got[-1:], twins[-1:])


def test_noise_is_gumbel_and_independent_of_neighbours() -> None:
    noise = torch.stack([gumbel(noise_key(8), position, 20_000) for position in range(4)])
    # Mean: Euler's constant; variance: pi^2 / 6. Bounds are five standard errors of 80,000 values.
    assert float(noise.mean()) == pytest.approx(0.577216, abs=5 * 1.2825 / 80_000**0.5)
    assert float(noise.var()) == pytest.approx(1.644934, abs=5 * 3.4 / 80_000**0.5)
    assert bool(noise.isfinite().all())
    other = torch.stack([gumbel(noise_key(9), position, 20_000) for position in range(4)])
    both = torch.cat([noise, other])
    correlation = both.corrcoef() - torch.eye(8)
    assert float(correlation.abs().max()) < 5 / 20_000**0.5
    neighbours = torch.stack([noise[0, 1:], noise[0, :-1]]).corrcoef()[0, 1]
    assert abs(float(neighbours)) < 5 / 20_000**0.5
