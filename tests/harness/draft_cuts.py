"""Tests: answers with drafts have the same tokens, logprobs, hits and cache trees as answers
without. One body for every device: a test file gives the fixture `engines`, with its device and
shapes, and a subclass of DraftCuts."""

from dataclasses import replace
from itertools import cycle
from typing import Protocol

import pytest

from tasuki.engine.speculation.draft_limit import FixedLimit
from tests.harness.covering import every_value
from tests.harness.engines import Lone, prompt, submit
from tests.harness.scripted_drafts import (
    DRAWN,
    KINDS,
    NEW,
    answered,
    any_limit,
    any_pattern,
    assert_same,
    draft,
    limited,
)


class DraftedEngines(Protocol):
    """Engines of one model, with and without drafts. rows: number of answers in a forward."""

    rows: int

    def plain(self) -> Lone:
        """Return an engine at rest, with an empty cache and without drafts."""
        ...

    def drafting(self) -> Lone:
        """Return an engine like plain(), drafting the tokens given by a test."""
        ...


def sampled(engine: Lone, length: int) -> list[int]:
    """Return the engine's sampled answer to a prompt of `length` tokens."""
    return [token.token for token in answered(engine, prompt(length), DRAWN)]


class DraftCuts:
    @every_value(
        kind={kind: kind for kind in KINDS},
        length={str(length): length for length in (1, 59, 64, 127)},
    )
    def test_any_drafts_give_the_same_answer_and_the_same_tree(
        self, engines: DraftedEngines, kind: str, length: int
    ) -> None:
        sampling, tokens = KINDS[kind], prompt(length)
        for most in (1, 3, 4):
            plain = engines.plain()
            answer = [token.token for token in answered(plain, tokens, sampling)]
            engine = engines.drafting()
            draft(engine, {"r": answer}, most, any_pattern(most))
            answered(engine, tokens, sampling)
            assert_same(engine, plain, tokens)

    @pytest.mark.parametrize("kind", KINDS)
    def test_a_limit_that_changes_changes_no_answer(
        self, engines: DraftedEngines, kind: str
    ) -> None:
        sampling, tokens = KINDS[kind], prompt(59)
        for seed in range(3):
            plain = engines.plain()
            answer = [token.token for token in answered(plain, tokens, sampling)]
            engine = engines.drafting()
            limited(engine, any_limit(seed, 4))
            draft(engine, {"r": answer}, 4, any_pattern(seed))
            answered(engine, tokens, sampling)
            limited(engine, FixedLimit(4))
            assert_same(engine, plain, tokens)

    @pytest.mark.parametrize("held", range(5))
    def test_as_many_drafts_are_accepted_as_hold(self, engines: DraftedEngines, held: int) -> None:
        answer = sampled(engines.plain(), 100)
        engine = engines.drafting()
        draft(engine, {"r": answer}, 4, cycle([held]))
        assert sampled(engine, 100) == answer
        usage = engine.finished("r").usage
        verified, rest = divmod(NEW - 1, held + 1)
        assert usage.completion_tokens == NEW
        if held == 4:
            # 29 tokens are five steps of five, and one with space for three drafts.
            assert (usage.accepted_tokens, usage.drafted_tokens) == (23, 23)
        else:
            assert usage.accepted_tokens >= verified * held + max(0, rest - 1)
            assert usage.accepted_tokens <= usage.drafted_tokens

    def test_a_stop_among_accepted_drafts_ends_the_answer_there(
        self, engines: DraftedEngines
    ) -> None:
        tokens, answer = prompt(90), sampled(engines.plain(), 90)
        places = [place for place in range(1, 12) if answer[place] not in answer[:place]]
        assert len(places) > 5
        for place in places:
            sampling = replace(DRAWN, stop_token_ids=(answer[place],))
            plain = engines.plain()
            answered(plain, tokens, sampling)
            engine = engines.drafting()
            draft(engine, {"r": answer}, 4, cycle([4]))
            answered(engine, tokens, sampling)
            assert engine.tokens("r") == answer[: place + 1]
            assert engine.finished("r").usage.accepted_tokens <= place
            assert_same(engine, plain, tokens)

    def test_answers_with_drafts_and_without_share_forwards(self, engines: DraftedEngines) -> None:
        prompts = {f"r{i}": prompt(40 + 17 * i, seed=i) for i in range(engines.rows)}
        plain = engines.plain()
        plain.ask_all(prompts, NEW)
        answers = {name: plain.tokens(name) for name in prompts}
        engine = engines.drafting()
        some = {name: answers[name] for name in prompts if name not in ("r1", "r4")}
        draft(engine, some, 4, any_pattern(3))
        engine.ask_all(prompts, NEW)
        for name, answer in answers.items():
            assert engine.tokens(name) == answer, name
        assert not engine.finished("r1").usage.drafted_tokens
        assert engine.finished("r0").usage.accepted_tokens
        engine.assert_at_rest()

    @pytest.mark.parametrize("steps", range(1, 9))
    def test_what_gives_way_between_drafts_goes_on_as_it_would(
        self, engines: DraftedEngines, steps: int
    ) -> None:
        answer = sampled(engines.plain(), 150)
        engine = engines.drafting()
        draft(engine, {"r": answer}, 3, any_pattern(steps))
        engine.post(submit("r", prompt(150), NEW, sampling=DRAWN))
        engine.steps(steps)
        scheduler = engine.engine._scheduler
        for request in list(scheduler.running):
            scheduler._retract(request)
        engine.run()
        assert engine.tokens("r") == answer
        engine.assert_at_rest()
