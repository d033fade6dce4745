"""Sampled tokens: determinism in (seed, position), support, and the distribution itself."""

import hashlib
import math

import numpy as np
import pytest
import torch

from tasuki.model.ops.sampling.gumbel import gumbel, noise_key
from tasuki.model.ops.sampling.params import SamplingParams
from tasuki.model.ops.sampling.reference import sample, stop_ids

LOGITS = torch.tensor([[2.0, 1.0, 0.5, 0.0, -1.0, -3.0]])


def draw_many(params: SamplingParams, draws: int, logits: torch.Tensor = LOGITS) -> list[int]:
    batch = logits.expand(draws, -1)
    return [item.token for item in sample(batch, [params] * draws, range(draws))]


def test_greedy_reports_logprob_and_margin() -> None:
    (drawn,) = sample(LOGITS, [SamplingParams()], [0])
    assert drawn.token == 0
    assert drawn.margin == 1.0
    assert drawn.logprob == pytest.approx(float(LOGITS[0].log_softmax(0)[0]), abs=1e-6)


def test_logprob_ignores_temperature_and_cuts() -> None:
    params = SamplingParams(temperature=5.0, top_k=3, seed=4)
    for position in range(20):
        (drawn,) = sample(LOGITS, [params], [position])
        want = float(LOGITS[0].log_softmax(0)[drawn.token])
        assert drawn.logprob == pytest.approx(want, abs=1e-6)


def test_no_change_of_logits_below_half_the_margin_changes_the_draw() -> None:
    generator = torch.Generator().manual_seed(3)
    for position in range(50):
        params = SamplingParams(temperature=0.7, seed=9)
        (drawn,) = sample(LOGITS, [params], [position])
        nudge = (2 * torch.rand(LOGITS.shape, generator=generator) - 1) * 0.49 * drawn.margin
        (nudged,) = sample(LOGITS + nudge, [params], [position])
        assert nudged.token == drawn.token
        down = LOGITS.clone()
        down[0, drawn.token] -= 1.01 * drawn.margin
        (changed,) = sample(down, [params], [position])
        assert changed.token != drawn.token


def test_same_seed_and_position_same_token_whatever_the_batch() -> None:
    generator = torch.Generator().manual_seed(1)
    logits = torch.randn(8, 50, generator=generator)
    params = [SamplingParams(temperature=1.0, top_p=0.9, seed=seed) for seed in range(7)]
    params.append(SamplingParams())
    positions = list(range(100, 108))
    together = sample(logits, params, positions)
    for row in reversed(range(8)):
        (alone,) = sample(logits[row : row + 1], [params[row]], [positions[row]])
        assert alone.token == together[row].token
    assert together[7].token == int(logits[7].argmax()), "greedy among drawn ones"


def mixed(word: int) -> int:
    word = ((word ^ (word >> 16)) * 0x7FEB352D) % 2**32
    word = ((word ^ (word >> 15)) * 0x846CA68B) % 2**32
    return word ^ (word >> 16)


def naive_gumbel(seed: int, position: int, token: int) -> float:
    digest = hashlib.sha256(str(seed).encode()).digest()
    first, second = (int.from_bytes(digest[i : i + 4], "little") for i in (0, 4))
    by_position = mixed((position ^ first) % 2**32)
    again = mixed((by_position + second) % 2**32)
    word = mixed((mixed(token ^ by_position) + again) % 2**32)
    # A float32 holds 24 of the word's 32 bits.
    uniform = min((float(np.float32(word)) + 0.5) / 2**32, 1 - 2.0**-24)
    return -math.log(-math.log1p(-uniform))


@pytest.mark.parametrize("seed", [0, 1, -7, 2**63 - 1])
def test_the_noise_is_its_naive_twins_and_its_keys_are_words_of_32_bits(seed: int) -> None:
    assert all(-(2**31) <= word < 2**31 for word in noise_key(seed))
    for position in (0, 1, 5000):
        noise = gumbel(noise_key(seed), position, 300).tolist()
        twin = [naive_gumbel(seed, position, token) for token in range(300)]
        assert noise == pytest.approx(twin, abs=1e-4)


TWO = float(LOGITS[0].softmax(0)[:2].sum())
FLAT = torch.tensor([[0.0, 0.1, 0.05, 0.02, 0.01, 0.0]])
FOUR_EQUAL, FORTY_EQUAL = torch.zeros(1, 4), torch.zeros(1, 40)
"""Four equal tokens have a quarter each, in binary too."""


@pytest.mark.parametrize(
    ("logits", "cuts", "kept"),
    [
        (LOGITS, {"temperature": 10.0, "top_k": 3}, {0, 1, 2}),
        (LOGITS, {"temperature": 10.0, "top_k": 99}, {*range(6)}),
        # The smallest set with this mass.
        (LOGITS, {"top_p": TWO - 0.01}, {0, 1}),
        (LOGITS, {"top_p": TWO + 0.01}, {0, 1, 2}),
        (LOGITS, {"top_p": 1e-6}, {0}),
        # A token that reaches the mass exactly is the last.
        (FOUR_EQUAL, {"top_p": 0.25}, {0}),
        (FOUR_EQUAL, {"top_p": 0.5}, {0, 1}),
        (FOUR_EQUAL, {"top_p": 0.75}, {0, 1, 2}),
        (FOUR_EQUAL, {"top_p": 0.75001}, {0, 1, 2, 3}),
        # Ties are cut in order of ids.
        (FORTY_EQUAL, {"top_k": 2}, {0, 1}),
        # Only the likeliest is left, for every top_p.
        (FLAT, {"temperature": 5.0, "top_k": 1}, {1}),
        (FLAT, {"temperature": 5.0, "top_k": 1, "top_p": 0.999}, {1}),
    ],
    ids=lambda value: str(value) if isinstance(value, dict | set) else None,
)
def test_a_cut_keeps_exactly_these_tokens(
    logits: torch.Tensor, cuts: dict[str, float], kept: set[int]
) -> None:
    params = SamplingParams(**({"temperature": 1.0, "seed": 5} | cuts))  # type: ignore[arg-type]
    assert set(draw_many(params, 600, logits)) == kept


def test_seed_and_position_both_matter() -> None:
    by_position = draw_many(SamplingParams(temperature=1.0, seed=1), 60)
    assert by_position == draw_many(SamplingParams(temperature=1.0, seed=1), 60)
    assert by_position != draw_many(SamplingParams(temperature=1.0, seed=2), 60)
    assert len(set(by_position)) > 1
    # Neighbouring seeds must not be the same stream, shifted.
    assert by_position[1:] != draw_many(SamplingParams(temperature=1.0, seed=2), 60)[:-1]


@pytest.mark.parametrize(
    "bounds",
    [
        {"top_k": -1},
        {"top_k": 2**31},
        {"temperature": -1.0},
        {"temperature": 1e-6},
        {"temperature": 101.0},
        {"temperature": math.inf},
        {"temperature": math.nan},
        {"top_p": 0.0},
        {"top_p": 1e-7},
        {"top_p": 1.0001},
        {"top_p": math.nan},
        {"max_new_tokens": -1},
        {"min_p": -0.1},
        {"min_p": 1.1},
        {"min_p": math.nan},
        {"presence_penalty": 2.1},
        {"presence_penalty": math.nan},
        {"frequency_penalty": -2.1},
        {"frequency_penalty": math.inf},
        {"repetition_penalty": 0.0},
        {"repetition_penalty": 1001.0},
        {"repetition_penalty": math.nan},
        {"min_tokens": -1},
        {"min_tokens": 65},
        {"logit_bias": ((1, 100.1),)},
        {"logit_bias": ((1, math.nan),)},
        {"logit_bias": ((-1, 1.0),)},
        {"logit_bias": ((1, 1.0), (1, 2.0))},
        {"logit_bias": tuple((token, 1.0) for token in range(301))},
        {"bad_words": ((),)},
        {"bad_words": ((2**31,),)},
        {"bad_words": ((1,) * 65,)},
        {"bad_words": ((1,),) * 257},
        {"allowed_token_ids": (-1,)},
        {"allowed_token_ids": (1,) * (2**14 + 1)},
        {"top_logprobs": -1},
        {"top_logprobs": 21},
    ],
    ids=lambda bounds: str(bounds)[:60],
)
def test_what_no_row_could_hold_is_no_request(bounds: dict[str, float]) -> None:
    (name,) = bounds
    with pytest.raises(ValueError, match=f"^{name} must "):
        SamplingParams(**bounds)  # type: ignore[arg-type]
    SamplingParams(max_new_tokens=1, top_k=2**31 - 1, top_p=1.0, temperature=100.0)


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_frequencies_follow_the_softmax(temperature: float) -> None:
    draws = 4000
    counts = [0] * 6
    for token in draw_many(SamplingParams(temperature=temperature, seed=11), draws):
        counts[token] += 1
    expected = (LOGITS[0] / temperature).softmax(0) * draws
    kept = [i for i in range(6) if expected[i] >= 5]
    chi_square = sum((counts[i] - float(expected[i])) ** 2 / float(expected[i]) for i in kept)
    # The 99.9% point for five degrees of freedom; the samples are fixed by the seed.
    assert chi_square < 20.5


def test_vocabulary_of_one() -> None:
    (drawn,) = sample(torch.zeros(1, 1), [SamplingParams()], [0])
    assert (drawn.token, drawn.logprob, drawn.margin) == (0, 0.0, math.inf)


def test_stop_ids() -> None:
    assert stop_ids(SamplingParams(), (7, 9)) == {7, 9}
    assert stop_ids(SamplingParams(stop_token_ids=(3,)), (7,)) == {3, 7}
    assert stop_ids(SamplingParams(stop_token_ids=(3,), ignore_eos=True), (7,)) == {3}


def test_without_a_cut_of_mass_no_token_is_too_unlikely_to_be_left() -> None:
    """The first token's mass is 1 in binary, but the token after it is still a choice."""
    params = SamplingParams(temperature=1.0, top_k=2, seed=1)
    (drawn,) = sample(torch.tensor([[0.0, -60.0, -90.0]]), [params], [0])
    assert drawn.token == 0 and drawn.margin < math.inf


def test_the_least_and_the_most_that_a_row_holds_are_requests() -> None:
    SamplingParams(temperature=1e-5, top_k=0, top_p=1e-6, max_new_tokens=1)
    SamplingParams(temperature=100.0, top_k=2**31 - 1, top_p=1.0)
    SamplingParams(min_p=1.0, presence_penalty=-2.0, frequency_penalty=2.0, min_tokens=64)
    SamplingParams(repetition_penalty=1e-3, logit_bias=((0, -100.0), (2**31 - 1, 100.0)))
    SamplingParams(repetition_penalty=1e3, bad_words=((1,) * 64,) * 256, top_logprobs=20)
    SamplingParams(allowed_token_ids=(1,) * 2**14)


def test_both_words_of_a_key_are_signed() -> None:
    assert all(-(2**31) <= word < 0 for word in noise_key(3))


def test_the_rarest_noise_is_its_naive_twins_too() -> None:
    """The hash word is 601 of 2^32, so small that the added half shows."""
    noise = float(gumbel(noise_key(1), 79, 15807)[15806])
    assert noise > 15 and noise == pytest.approx(naive_gumbel(1, 79, 15806), abs=1e-4)
