"""Adjusted logits compared with their naive reference, bit by bit, and the tokens sampled from
them."""

import math
import tracemalloc
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from tasuki.model.grammar.vocabulary import UnfinishedTokens
from tasuki.model.ops.sampling.logit_adjustments import (
    AdjustedRows,
    LogitAdjuster,
    TokensBefore,
    adjusted,
)
from tasuki.model.ops.sampling.params import SamplingParams
from tasuki.model.ops.sampling.reference import sample, stop_ids
from tasuki.model.ops.sampling.thinking_budget import ThinkingBudget
from tasuki.model.ops.sampling.top_logprobs import top_logprobs

from .adjustments_twin import naive_adjusted
from .test_sampling import Allowing

VOCAB = 40
ROWS = 10_000
BATCH = 100
EOS = (3, 7)
LACKING = {20: 1, 21: 2, 22: 3, 23: 1}
"""Bytes still needed by the last character of a token."""


def ids(rng: np.random.Generator, most: int) -> tuple[int, ...]:
    return tuple(rng.integers(0, VOCAB, rng.integers(1, most + 1)).tolist())


def some_params(rng: np.random.Generator) -> SamplingParams:
    """Return any subset of the fields, each with any value."""
    fields = {
        "temperature": lambda: float(rng.choice([0.3, 1.0, 2.5])),
        "top_k": lambda: int(rng.integers(1, VOCAB)),
        "top_p": lambda: float(rng.uniform(0.2, 1.0)),
        "min_p": lambda: float(rng.choice([1e-6, 0.05, 0.5, 1.0])),
        "presence_penalty": lambda: float(rng.uniform(-2, 2)),
        "frequency_penalty": lambda: float(rng.uniform(-2, 2)),
        "repetition_penalty": lambda: float(rng.uniform(0.5, 2)),
        "logit_bias": lambda: tuple(
            (token, float(rng.uniform(-100, 100))) for token in sorted({*ids(rng, 5)})
        ),
        "min_tokens": lambda: int(rng.integers(0, 12)),
        "bad_words": lambda: tuple(ids(rng, 2) for _ in range(rng.integers(1, 30))),
        "allowed_token_ids": lambda: ids(rng, 10),
        "ignore_eos": lambda: True,
        "stop_token_ids": lambda: ids(rng, 3),
        "thinking": lambda: some_budget(rng),
    }
    chosen = {name: draw() for name, draw in fields.items() if rng.random() < 0.5}
    return SamplingParams(seed=int(rng.integers(2**40)), **chosen)


def some_budget(rng: np.random.Generator) -> ThinkingBudget:
    closing = ids(rng, 4)
    opening = int(rng.integers(0, 3)) if rng.random() < 0.5 else None
    return ThinkingBudget(int(rng.integers(0, 12)), closing, int(rng.choice(closing)), opening)


def adjuster(
    params: SamplingParams, prompt: list[int], output: list[int], known: int
) -> LogitAdjuster:
    """Return an adjuster given the first `known` tokens of the output at once, and the others one
    by one."""
    before = TokensBefore.of(params, np.array(prompt, dtype=np.int32), output[:known])
    made = LogitAdjuster(
        params, stop_ids(params, EOS), VOCAB, before, unfinished=UnfinishedTokens(VOCAB, LACKING)
    )
    for token in output[known:]:
        made.append(token)
    return made


def adjust(logits: torch.Tensor, adjusters: list[LogitAdjuster]) -> torch.Tensor:
    return adjusted(logits, AdjustedRows.of(adjusters).to(logits.device))


def test_10000_random_rows_are_their_naive_twins() -> None:
    rng = np.random.default_rng(16)
    changed = 0
    for _ in range(ROWS // BATCH):
        logits = rng.normal(0, 4, (BATCH, VOCAB)).astype(np.float32)
        # Ties, and values exactly at each other's bounds.
        logits[::3] = np.round(logits[::3])
        params = [some_params(rng) for _ in range(BATCH)]
        prompts = [list(ids(rng, 15)) for _ in params]
        outputs = [list(ids(rng, 20))[: rng.integers(0, 21)] for _ in params]
        adjusters = [
            adjuster(item, prompt, output, int(rng.integers(0, len(output) + 1)))
            for item, prompt, output in zip(params, prompts, outputs, strict=True)
        ]
        got = adjust(torch.from_numpy(logits), adjusters)
        twins = np.stack(
            [
                naive_adjusted(row, item, stop_ids(item, EOS), prompt, output, LACKING)
                for row, item, prompt, output in zip(logits, params, prompts, outputs, strict=True)
            ]
        )
        np.testing.assert_array_equal(got.numpy(), twins)
        changed += int((twins.argmax(axis=1) != logits.argmax(axis=1)).sum())
        drawn = range(0, BATCH, 10)
        raw, asked = torch.from_numpy(logits)[::10], [params[row] for row in drawn]
        draws = sample(raw, asked, drawn, got[::10])
        assert draws == sample(raw, asked, drawn, torch.from_numpy(twins)[::10])
    assert changed > ROWS / 3


def test_logprobs_are_those_of_the_logits_as_they_were() -> None:
    logits = torch.randn(1, VOCAB, generator=torch.Generator().manual_seed(2))
    params = SamplingParams(allowed_token_ids=(5, 6), top_logprobs=3)
    (drawn,) = sample(logits, [params], [0], adjust(logits, [adjuster(params, [], [], 0)]))
    assert drawn.token in (5, 6)
    assert drawn.logprob == pytest.approx(float(logits[0].log_softmax(0)[drawn.token]), abs=1e-6)
    likeliest = logits[0].argsort(descending=True)[:3].tolist()
    assert [token for token, _ in drawn.top] == likeliest
    assert drawn.top[0][1] == pytest.approx(float(logits[0].log_softmax(0).max()), abs=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_of_equal_logits_the_lower_ids_are_named_first(dtype: torch.dtype) -> None:
    logits = torch.tensor([[0.0, -0.0, 3.0, -1.0, 3.0, 0.0], [-2.0] * 6], dtype=dtype)
    tokens, logprobs = top_logprobs(logits, 4)
    assert tokens.tolist() == [[2, 4, 0, 1], [0, 1, 2, 3]]
    torch.testing.assert_close(logprobs, logits.float().log_softmax(1).gather(1, tokens))
    assert top_logprobs(logits, 20)[0].shape == (2, 6)


def test_the_likeliest_are_named_first_below_zero_too_and_however_close_they_are() -> None:
    for values in ([-3.0, -2.0, -1.0, -0.5], [-1e-9, 0.0, 1e-9, 2e-9], [-math.inf, -1.0, 0.0, 1.0]):
        tokens, _ = top_logprobs(torch.tensor([values]), 4)
        assert tokens.tolist() == [[3, 2, 1, 0]]


def test_logits_of_half_precision_are_adjusted_as_floats() -> None:
    params = SamplingParams(repetition_penalty=1.3)
    logits = torch.randn(1, VOCAB).bfloat16()
    kept = logits.clone()
    item = adjuster(params, [1, 2], [3], 0)
    assert torch.equal(adjust(logits, [item]), adjust(logits.float(), [item]))
    assert torch.equal(logits, kept)


def one(params: SamplingParams, prompt: list[int], output: list[int]) -> torch.Tensor:
    """Return the adjusted logits: 2.0 for even ids and -2.0 for odd ones before."""
    logits = torch.tensor([[2.0, -2.0] * (VOCAB // 2)])
    return adjust(logits, [adjuster(params, prompt, output, 0)])[0]


def test_presence_and_frequency_are_of_the_output_and_repetition_of_the_prompt_too() -> None:
    both = one(SamplingParams(presence_penalty=0.5, frequency_penalty=0.25), [0], [2, 2, 5])
    assert both[[0, 2, 5, 6]].tolist() == [2.0, 1.0, -2.75, 2.0]
    repeated = one(SamplingParams(repetition_penalty=2.0), [0, 1], [2])
    assert repeated[[0, 1, 2, 3]].tolist() == [1.0, -4.0, 1.0, -2.0]


def test_what_is_counted_takes_as_much_memory_as_there_are_different_tokens() -> None:
    item = LogitAdjuster(
        SamplingParams(presence_penalty=1.0),
        frozenset(),
        1000,
        TokensBefore(np.empty(0, np.int32), np.empty(0, np.int32)),
    )
    tracemalloc.start()
    try:
        for token in range(15):
            item.append(token)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < 1 << 20
    for token in range(15, 300):
        item.append(token)
    assert item.seen.tolist() == list(range(300)) and item.counts.tolist() == [1.0] * 300


def test_an_answer_does_not_end_before_min_tokens() -> None:
    params = SamplingParams(min_tokens=2, stop_token_ids=(9,))
    assert one(params, [], [1])[[3, 7, 9]].tolist() == [-math.inf] * 3
    assert one(params, [], [1, 1])[[3, 7, 9]].tolist() == [-2.0] * 3
    heedless = replace(params, ignore_eos=True)
    assert one(heedless, [], [])[[3, 7, 9]].tolist() == [-2.0, -2.0, -math.inf]


def test_the_last_token_of_a_bad_word_is_ruled_out_behind_the_others() -> None:
    params = SamplingParams(bad_words=((4,), (5, 6), (1, 2, 8)))
    assert one(params, [5], [])[[4, 6, 8]].tolist() == [-math.inf, 2.0, 2.0]
    assert one(params, [], [1, 2])[[4, 6, 8]].tolist() == [-math.inf, 2.0, -math.inf]
    assert one(params, [], [1, 5])[[4, 6, 8]].tolist() == [-math.inf, -math.inf, 2.0]


def test_some_token_is_always_left() -> None:
    params = SamplingParams(allowed_token_ids=(3, 4), bad_words=((4,),), min_tokens=1)
    assert one(params, [], [])[[3, 4]].tolist() == [-2.0, 2.0]
    every = tuple((token,) for token in range(VOCAB))
    assert bool(one(SamplingParams(bad_words=every), [], []).isfinite().all())


def test_min_p_keeps_what_is_at_its_bound_and_greedy_rows_whole() -> None:
    kept = one(SamplingParams(temperature=1.0, min_p=1.0), [], [])
    assert kept[:2].tolist() == [2.0, -math.inf]
    assert bool(one(SamplingParams(min_p=1.0, logit_bias=((1, 1.0),)), [], []).isfinite().all())


@pytest.mark.parametrize(
    ("params", "adjusts", "follows"),
    [
        (SamplingParams(top_logprobs=20, temperature=1.0), False, False),
        (SamplingParams(min_p=0.1), False, False),
        (SamplingParams(min_p=0.1, temperature=1.0), True, False),
        (SamplingParams(bad_words=((1,),)), True, False),
        (SamplingParams(bad_words=((1, 2),)), True, True),
        (SamplingParams(allowed_token_ids=(1,)), True, False),
        (SamplingParams(logit_bias=((1, 0.5),)), True, False),
        (SamplingParams(min_tokens=1), True, True),
        (SamplingParams(presence_penalty=-0.1), True, True),
        (SamplingParams(frequency_penalty=0.1), True, True),
        (SamplingParams(repetition_penalty=1.1), True, True),
    ],
    ids=str,
)
def test_who_is_adjusted_and_by_what_came_before(
    params: SamplingParams, adjusts: bool, follows: bool
) -> None:
    assert (params.adjusts, params.follows_output) == (adjusts, follows)


@pytest.mark.parametrize(
    "more",
    [
        {"allowed_token_ids": (1,)},
        {"bad_words": ((1,),)},
        {"logit_bias": ((1, 0.5),)},
        {"presence_penalty": 0.5},
        {"min_p": 0.1, "temperature": 1.0},
    ],
    ids=str,
)
def test_masks_are_alone_where_no_row_asks_for_anything_else(more: dict[str, Any]) -> None:
    none = TokensBefore(np.empty(0, np.int32), np.empty(0, np.int32))
    masked = LogitAdjuster(SamplingParams(), frozenset(), VOCAB, none, Allowing([1, 2], VOCAB))
    other = adjuster(SamplingParams(**more), [], [1], 0)
    assert AdjustedRows.of([masked]).masks_alone
    assert not AdjustedRows.of([masked, other]).masks_alone
    assert not AdjustedRows.of([other]).masks_alone
