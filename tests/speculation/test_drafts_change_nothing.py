"""Answers with drafts and without them have the same tokens, logprobs, hits and trees. All tokens
are sampled from the model in both cases. Memory with a new owner is NaN until it is written."""

from dataclasses import replace
from itertools import cycle, pairwise

import numpy as np
import pytest
import torch

from tasuki.engine import messages as m
from tasuki.engine.speculation.draft_limit import FixedLimit, StepShape
from tasuki.model.families.qwen3_5.stack import Qwen35Model
from tasuki.model.grammar.grammar import Grammar, GrammarKind
from tests.harness.draft_cuts import DraftCuts
from tests.harness.engines import Lone, prompt, submit, tiny_engine, tiny_parts
from tests.harness.scripted_drafts import (
    DRAWN,
    NEW,
    ScriptedLimit,
    answered,
    any_limit,
    any_pattern,
    assert_same,
    draft,
    limited,
)

WORDS = replace(
    DRAWN, grammar=Grammar(GrammarKind.REGEX, "([a-f]{2,4}[ .,;]){3,20}"), stop_token_ids=(127,)
)


class CpuEngines:
    rows = 6

    def plain(self) -> Lone:
        return tiny_engine(prefill_chunk_tokens=64)

    drafting = plain


@pytest.fixture
def engines() -> CpuEngines:
    return CpuEngines()


class TestDraftsOnTheCpu(DraftCuts):
    pass


@pytest.mark.parametrize("length", [1, 64])
def test_drafts_of_what_a_grammar_allows_change_nothing(length: int) -> None:
    tokens = prompt(length)
    for limit in (FixedLimit(4), any_limit(1, 4)):
        plain, engine = tiny_engine(), tiny_engine()
        answer = [token.token for token in answered(plain, tokens, WORDS)]
        limited(engine, limit)
        draft(engine, {"r": answer}, 4, any_pattern(3))
        answered(engine, tokens, WORDS)
        assert_same(engine, plain, tokens)


def test_what_steps_took_is_measured_with_what_they_gave() -> None:
    plain, engine = tiny_engine(), tiny_engine()
    prompts = {f"r{number}": prompt(40, seed=number) for number in range(3)}
    plain.ask_all(prompts, NEW)
    answers = {name: plain.tokens(name) for name in prompts}
    # Six steps plan ahead. In the next six some have drafts for one answer, some for none.
    limit = ScriptedLimit(cycle([0] * 6 + [3] * 6), cycle([3, 3, 3, 0, 0, 3]))
    limited(engine, limit)
    draft(engine, {"r0": answers["r0"]}, 4, cycle([4]))
    engine.ask_all(prompts, NEW)
    assert {name: engine.tokens(name) for name in prompts} == answers
    for before, step in pairwise(limit.completions):
        assert step.seconds > 0
        if step.shape.drafted:
            assert not step.planned
            assert step.tokens == step.shape.answers + step.shape.tokens - 1
        else:
            assert step.tokens == step.shape.answers
            assert not (step.planned and before.shape.drafted)
    full = [step for step in limit.completions if step.shape.answers == 3]
    assert {step.planned for step in full if not step.shape.drafted} == {True, False}
    assert StepShape(2, 1, 4) in {step.shape for step in full}


@pytest.mark.parametrize("most", range(1, 9))
def test_an_answer_never_has_more_tokens_than_it_may(most: int) -> None:
    tokens, sampling = prompt(61), replace(DRAWN, max_new_tokens=most)
    longer = [token.token for token in answered(tiny_engine(), tokens, DRAWN)]
    plain, engine = tiny_engine(), tiny_engine()
    answered(plain, tokens, sampling)
    draft(engine, {"r": longer}, 4, cycle([4]))
    answered(engine, tokens, sampling)
    assert_same(engine, plain, tokens)


@pytest.mark.parametrize("left", [1, 2, 3, 6])
def test_drafts_end_where_the_models_context_does(left: int) -> None:
    """vllm#38711: rows after the last position read and write nothing."""
    tokens, known = (
        prompt(150),
        [token.token for token in answered(tiny_engine(), prompt(150), DRAWN)],
    )
    parts = tiny_parts()
    # The last sampled token is never forwarded.
    config = replace(parts.model_config, max_position=149 + left)
    plain, engine = (
        tiny_engine(parts=replace(tiny_parts(), model_config=config)) for _ in range(2)
    )
    sampling = replace(DRAWN, max_new_tokens=left)
    draft(engine, {"r": known}, 4, cycle([4]))
    for node in (plain, engine):
        answered(node, tokens, sampling)
        assert node.tokens("r") == known[:left]
        assert node.finished("r").reason is m.FinishReason.LENGTH
    assert engine.tree() == plain.tree()
    longer = replace(DRAWN, max_new_tokens=left + 1)
    engine.post(submit("longer", tokens, left + 1, sampling=longer))
    engine.run()
    assert engine.rejected("longer").kind is m.ErrorKind.TOO_LONG
    engine.assert_at_rest()


@pytest.mark.parametrize("place", [1, 2, 7])
def test_an_end_token_among_drafts_ends_nothing_that_is_not_drawn(place: int) -> None:
    tokens = prompt(90)
    drawn = [token.token for token in answered(tiny_engine(), tokens, DRAWN)]
    end = next(token for token in range(128) if token not in drawn)
    sampling = replace(DRAWN, stop_token_ids=(end,))
    plain, engine = tiny_engine(), tiny_engine(draft_tokens=4)
    answered(plain, tokens, sampling)
    prediction = np.array([*drawn[:place], end, *drawn[place + 1 :]], dtype=np.int32)
    engine.post(submit("r", tokens, NEW, sampling=sampling, prediction=prediction))
    engine.run()
    assert engine.tokens("r") == drawn and engine.finished("r").usage.accepted_tokens > 10
    assert engine.finished("r").usage.rejected_prediction_tokens
    assert_same(engine, plain, tokens)


def test_a_long_answer_is_folded_as_it_is_computed() -> None:
    """sglang#28695: drifting states make long answers degenerate, and more and more drafts are
    accepted."""
    tokens, long = prompt(70), replace(DRAWN, max_new_tokens=700)
    plain, engine = tiny_engine(speculate="off"), tiny_engine()
    answer = [token.token for token in answered(plain, tokens, long)]
    draft(engine, {"r": answer}, 4, any_pattern(7))
    answered(engine, tokens, long)
    assert_same(engine, plain, tokens)
    assert len(set(answer[-100:])) > 20


@pytest.mark.parametrize("steps", range(1, 9))
def test_an_abort_between_drafts_leaves_a_state_that_others_may_use(steps: int) -> None:
    tokens = prompt(150)
    answer = [token.token for token in answered(tiny_engine(), tokens, DRAWN)]
    engine = tiny_engine(prefill_chunk_tokens=64)
    draft(engine, {"r": answer}, 3, any_pattern(steps))
    engine.post(submit("r", tokens, NEW, sampling=DRAWN))
    engine.steps(steps)
    engine.post(m.Abort(m.RequestId("r")))
    engine.run()
    said = engine.tokens("r")
    assert said == answer[: len(said)]
    engine.assert_at_rest()
    # The kept state equals that of a computation from the start.
    second = tokens + said + prompt(20, seed=4)
    assert engine.ask("t2", second, 5) == tiny_engine().ask("t2", second, 5)


@pytest.mark.parametrize("slabs", [6, 7, 9])
def test_drafts_take_no_room_that_others_need(slabs: int) -> None:
    prompts = {f"r{i}": prompt(100, seed=i) for i in range(3)}
    plain = tiny_engine()
    plain.ask_all(prompts, 40)
    engine = tiny_engine(slabs=slabs)
    draft(engine, {name: plain.tokens(name) for name in prompts}, 4, any_pattern(5))
    engine.ask_all(prompts, 40)
    for name in prompts:
        assert engine.tokens(name) == plain.tokens(name), name
    engine.assert_at_rest()


def test_a_draft_behind_which_logits_are_no_numbers_ends_only_its_request() -> None:
    tokens = prompt(70)
    answer = [token.token for token in answered(tiny_engine(), tokens, DRAWN)]

    class Broken(Qwen35Model):
        def head(self, *args: object) -> torch.Tensor:
            logits = super().head(*args)  # type: ignore[arg-type]
            # Only verifying rows have several tokens.
            return logits if len(logits) < 4 else logits * torch.nan

    parts = tiny_parts()
    parts = replace(parts, model=Broken(parts.model.config, parts.model.weights))
    engine = tiny_engine(parts=parts)
    draft(engine, {"r": answer}, 4, cycle([4]))
    engine.post(submit("r", tokens, NEW, sampling=DRAWN))
    engine.run()
    assert engine.rejected("r").kind is m.ErrorKind.INTERNAL
    engine.assert_at_rest()
