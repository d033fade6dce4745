"""Random requests with thinking budgets: kept exactly, the same tokens in every cut of the work.

TASUKI_BUDGETS: how many requests; minutes with 1,000.
"""

import os
from collections.abc import Iterator
from random import Random

import pytest

from tasuki.model.grammar.grammar import Grammar, GrammarKind
from tasuki.model.ops.sampling.params import SamplingParams
from tasuki.model.ops.sampling.thinking_budget import ThinkingBudget
from tests.harness.covering import slow_behind
from tests.harness.engine_pair import EnginePair, engine_pair
from tests.harness.engines import Lone, prompt, submit, tiny_engine, tiny_parts
from tests.harness.scripted_drafts import any_pattern, draft

REQUESTS = int(os.environ.get("TASUKI_BUDGETS", "40"))
LETTERS = 127
"""Tokens of the tiny model, less its end token."""


def some_sampling(rng: Random) -> SamplingParams:
    """Return a budget from zero to more than the answer has, with any other sampling settings."""
    tag = rng.randrange(LETTERS)
    closing = (*rng.choices(range(LETTERS), k=rng.randrange(3)), tag, *rng.choices([10], k=2))
    opening = rng.choice([None, None, rng.randrange(LETTERS)])
    new = rng.randrange(1, 40)
    fields: dict[str, object] = {
        "max_new_tokens": new,
        "ignore_eos": True,
        "seed": rng.randrange(2**40),
        "temperature": rng.choice([0.0, 1.0, 60.0]),
        "thinking": ThinkingBudget(rng.choice([0, 1, 2, 3, *range(4, 45)]), closing, tag, opening),
    }
    biases = dict.fromkeys(rng.choices(range(LETTERS), k=3), 2.0)
    if opening is not None and rng.random() < 0.8:
        biases[opening] = 80.0
    if rng.random() < 0.3:
        biases[tag] = -100.0
    if rng.random() < 0.5 or opening is not None:
        fields["logit_bias"] = tuple(sorted(biases.items()))
    if rng.random() < 0.3:
        fields["repetition_penalty"] = 1.3
        fields["presence_penalty"] = 0.5
    if rng.random() < 0.3:
        fields["bad_words"] = ((tag,), (10, 10))
        fields["min_tokens"] = min(new, 8)
    if rng.random() < 0.3:
        gap = closing[closing.index(tag) + 1 :]
        fields["grammar"] = Grammar(
            GrammarKind.REGEX, "([a-z]{2,4} ){60}", closing=tag, opening=opening, gap=gap
        )
    return SamplingParams(**fields)  # type: ignore[arg-type]


def assert_kept(answer: list[int], sampling: SamplingParams) -> None:
    """Assert that the thought has at most its allowed tokens and is closed after them."""
    budget = sampling.thinking
    assert budget is not None
    thought = answer
    if budget.opening is not None:
        if answer[0] != budget.opening:
            return
        thought = answer[1:]
    if budget.tag in thought[: budget.most]:
        return
    behind = thought[budget.most :]
    assert behind[: len(budget.closing)] == list(budget.closing[: len(behind)])


@pytest.fixture(scope="module")
def fused() -> Lone:
    return tiny_engine(prefill_chunk_tokens=64)


@pytest.fixture(scope="module")
def drafted() -> Lone:
    return tiny_engine(prefill_chunk_tokens=64)


@pytest.fixture(scope="module")
def pair() -> Iterator[EnginePair]:
    with engine_pair(tiny_parts(), tiny_parts()) as both:
        yield both


@pytest.mark.parametrize("seed", slow_behind(12, {str(seed): seed for seed in range(REQUESTS)}))
def test_budget_is_kept_fused_handed_over_resumed_and_drafted(
    seed: int, fused: Lone, drafted: Lone, pair: EnginePair
) -> None:
    rng = Random(seed)
    sampling = some_sampling(rng)
    tokens, name = prompt(rng.randrange(2, 150), seed), f"r{seed}"
    asked = submit(name, tokens, sampling.max_new_tokens, sampling=sampling)
    fused.post(asked)
    fused.run()
    answer = fused.tokens(name)
    assert_kept(answer, sampling)

    draft(drafted, {name: answer}, 4, any_pattern(seed))
    drafted.post(asked)
    drafted.run()
    assert drafted.tokens(name) == answer

    if len(answer) > 1:
        transfer = pair.hand_over(asked)
        pair.ready(transfer, None)
        if rng.random() < 0.7:
            pair.done(transfer)
            pair.decode.run()
        else:
            pair.lose(transfer)
        assert pair.decode.tokens(name) == answer


def test_budgets_of_retracted_answers_are_kept() -> None:
    engine = tiny_engine(arena_mib=0.3, prefill_chunk_tokens=64)
    rng = Random(5)
    asked = {}
    for number in range(6):
        budget = ThinkingBudget(rng.randrange(60, 120), (10, 99, 10), 99)
        sampling = SamplingParams(
            max_new_tokens=130,
            ignore_eos=True,
            seed=number,
            temperature=1.0,
            logit_bias=((99, -100.0),),
            thinking=budget,
        )
        name = f"r{number}"
        asked[name] = (prompt(150, number), sampling)
        engine.post(submit(name, asked[name][0], 130, sampling=sampling))
    engine.run()
    assert any("Retracted" in engine.phases(name) for name in asked)
    for name, (tokens, sampling) in asked.items():
        assert_kept(engine.tokens(name), sampling)
        alone = tiny_engine()
        alone.post(submit(name, tokens, 130, sampling=sampling))
        alone.run()
        assert engine.tokens(name) == alone.tokens(name)
