"""Answers with drafts beside answers without: what is asked, and what must be equal."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from random import Random

import pytest

from tasuki.engine import messages as m
from tasuki.model.ops.sampling.params import SamplingParams
from tasuki.model.ops.sampling.thinking_budget import ThinkingBudget
from tests.harness.engines import Lone, prompt, submit

NEW = 30
GREEDY = SamplingParams(max_new_tokens=NEW, ignore_eos=True)
DRAWN = SamplingParams(max_new_tokens=NEW, temperature=60.0, seed=11, ignore_eos=True)
PENALISED = replace(
    DRAWN, temperature=1.0, presence_penalty=1.5, repetition_penalty=1.7, min_p=0.001
)
LIKELIEST = replace(DRAWN, top_logprobs=3, top_p=0.9, top_k=60)
THOUGHTFUL = replace(DRAWN, thinking=ThinkingBudget(9, (10, 99, 10), 99))
KINDS = {
    "greedy": GREEDY,
    "drawn": DRAWN,
    "penalised": PENALISED,
    "likeliest": LIKELIEST,
    "thoughtful": THOUGHTFUL,
}


def answered(engine: Lone, tokens: Sequence[int], sampling: SamplingParams) -> list[m.TokenOut]:
    engine.post(submit("r", tokens, sampling.max_new_tokens, sampling=sampling))
    engine.run()
    return engine.all_said(m.TokenOut)


def assert_same(engine: Lone, plain: Lone, tokens: Sequence[int]) -> None:
    """Both were asked the same, in the same order."""
    mine, theirs = engine.all_said(m.TokenOut), plain.all_said(m.TokenOut)
    assert [(t.token, t.index) for t in mine] == [(t.token, t.index) for t in theirs]
    for field in ("logprob", "margin"):
        values = [[getattr(t, field) for t in said] for said in (mine, theirs)]
        assert values[0] == pytest.approx(values[1], abs=2e-4)
    assert [[token for token, _ in t.top] for t in mine] == [
        [token for token, _ in t.top] for t in theirs
    ]
    assert engine.tree() == plain.tree()
    ends = [node.finished("r") for node in (engine, plain)]
    assert ends[0].reason is ends[1].reason
    answer = [t.token for t in theirs]
    second = [*tokens, *answer, *prompt(20, seed=9)]
    assert engine.ask("t2", second, 3) == plain.ask("t2", second, 3)
    assert engine.hit("t2") == plain.hit("t2")
    engine.assert_at_rest()


def any_pattern(seed: int) -> Iterator[int]:
    generator = Random(seed)
    while True:
        yield generator.randrange(6)
