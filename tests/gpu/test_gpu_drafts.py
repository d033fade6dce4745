"""Answers with drafts on a GPU: the tokens, logprobs, hits and trees of answers without, and drafts
accepted as they hold; memory that changes owner is NaN until it is written."""

from dataclasses import replace
from functools import cache
from itertools import cycle

import numpy as np
import pytest

from tasuki.engine.config import EngineConfig
from tasuki.engine.speculation.draft_limit import FixedLimit
from tasuki.model.grammar.grammar import Grammar, GrammarKind
from tests.gpu.shapes import CONFIGS, parts_of
from tests.harness.engine_goldens import cold_engine
from tests.harness.engines import Lone, prompt, submit
from tests.harness.goldens import MODELS, cases_of
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

ROWS = 12


@cache
def engine_of(shape: str, speculate: str) -> Lone:
    config = EngineConfig(
        model="",
        dtype="float32",
        device="cuda",
        arena_mib=512,
        max_batch=ROWS,
        prefill_chunk_tokens=64,
        speculate=speculate,
        draft_count="most",
    )
    # By the config, so that what is compared has an arena of its own.
    return Lone(config, parts=parts_of(shape, config))


def cold(shape: str, speculate: str) -> Lone:
    engine = engine_of(shape, speculate)
    engine.flush()
    return engine


@pytest.mark.parametrize("shape", sorted(CONFIGS))
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("length", [1, 59, 64, 127])
def test_any_drafts_give_the_same_answer_and_the_same_tree(
    shape: str, kind: str, length: int
) -> None:
    sampling, tokens = KINDS[kind], prompt(length)
    for most in (1, 3, 4):
        plain = cold(shape, "off")
        answer = [token.token for token in answered(plain, tokens, sampling)]
        engine = cold(shape, "prediction")
        draft(engine, {"r": answer}, most, any_pattern(most))
        answered(engine, tokens, sampling)
        assert_same(engine, plain, tokens)


@pytest.mark.parametrize("held", range(5))
def test_as_many_drafts_are_accepted_as_hold(held: int) -> None:
    tokens = prompt(100)
    answer = [token.token for token in answered(cold("dense", "off"), tokens, DRAWN)]
    engine = cold("dense", "prediction")
    draft(engine, {"r": answer}, 4, cycle([held]))
    assert [token.token for token in answered(engine, tokens, DRAWN)] == answer
    usage = engine.finished("r").usage
    verified, rest = divmod(NEW - 1, held + 1)
    if held == 4:
        assert (usage.accepted_tokens, usage.drafted_tokens) == (23, 23)
    else:
        assert usage.accepted_tokens >= verified * held + max(0, rest - 1)
        assert usage.accepted_tokens <= usage.drafted_tokens


@pytest.mark.parametrize("shape", sorted(CONFIGS))
def test_answers_with_drafts_and_without_share_forwards(shape: str) -> None:
    prompts = {f"r{i}": prompt(40 + 17 * i, seed=i) for i in range(ROWS)}
    plain = cold(shape, "off")
    plain.ask_all(prompts, NEW)
    answers = {name: plain.tokens(name) for name in prompts}
    engine = cold(shape, "prediction")
    some = {name: answers[name] for name in prompts if name not in ("r1", "r4")}
    draft(engine, some, 4, any_pattern(3))
    engine.ask_all(prompts, NEW)
    for name, answer in answers.items():
        assert engine.tokens(name) == answer, name
    assert not engine.finished("r1").usage.drafted_tokens
    assert engine.finished("r0").usage.accepted_tokens
    engine.assert_at_rest()


def test_rows_for_which_there_is_no_room_go_without_their_drafts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    prompts = {f"r{i}": prompt(40 + 17 * i, seed=i) for i in range(ROWS)}
    plain = cold("dense", "off")
    plain.ask_all(prompts, NEW)
    answers = {name: plain.tokens(name) for name in prompts}
    engine = cold("dense", "prediction")
    verifier = engine.engine._plans._runner._verifier  # type: ignore[attr-defined]
    monkeypatch.setattr(verifier, "_most", 5)
    draft(engine, answers, 3, any_pattern(7))
    engine.ask_all(prompts, NEW)
    assert {name: engine.tokens(name) for name in prompts} == answers
    engine.assert_at_rest()


@pytest.mark.parametrize("steps", range(1, 9))
def test_what_gives_way_or_ends_between_drafts_leaves_what_others_may_use(steps: int) -> None:
    tokens = prompt(150)
    answer = [token.token for token in answered(cold("dense", "off"), tokens, DRAWN)]
    engine = cold("dense", "prediction")
    draft(engine, {"r": answer}, 3, any_pattern(steps))
    engine.post(submit("r", tokens, NEW, sampling=DRAWN))
    engine.steps(steps)
    scheduler = engine.engine._scheduler
    for request in list(scheduler.running):
        scheduler._retract(request)
    engine.run()
    assert engine.tokens("r") == answer
    engine.assert_at_rest()


@pytest.mark.parametrize("draft_layer", ["auto", "off"])
@pytest.mark.parametrize("most", [1, 3, 4, 7])
@pytest.mark.parametrize("model", MODELS)
def test_a_golden_drafted_from_itself_is_the_golden(
    model: str, most: int, draft_layer: str, fresh_seed: int
) -> None:
    generator = np.random.default_rng(fresh_seed)
    settings = {"speculate": "prediction", "draft_tokens": most, "draft_layer": draft_layer}
    engine = cold_engine(model, "cuda", prefill_chunk_tokens=64, **settings)
    for name, case in cases_of(model).items():
        prediction, new = np.array(case.greedy, dtype=np.int32), len(case.greedy)
        assert engine.ask(name, case.prompt, new, prediction=prediction) == case.greedy
        usage = engine.finished(name).usage
        assert usage.accepted_tokens == usage.drafted_tokens > 0
        prediction[generator.integers(1, new, 3)] ^= 1
        again = f"{name} broken"
        assert engine.ask(again, case.prompt, new, prediction=prediction) == case.greedy
    engine.assert_at_rest()


@pytest.mark.parametrize("kind", KINDS)
def test_a_limit_that_changes_changes_no_answer(kind: str) -> None:
    sampling, tokens = KINDS[kind], prompt(100)
    for seed in range(4):
        plain = cold("dense", "off")
        answer = [token.token for token in answered(plain, tokens, sampling)]
        engine = cold("dense", "prediction")
        limited(engine, any_limit(seed, 4))
        draft(engine, {"r": answer}, 4, any_pattern(seed))
        answered(engine, tokens, sampling)
        limited(engine, FixedLimit(4))
        assert_same(engine, plain, tokens)


def test_a_stop_among_accepted_drafts_ends_the_answer_there() -> None:
    tokens = prompt(90)
    drawn = [token.token for token in answered(cold("dense", "off"), tokens, DRAWN)]
    for place in [place for place in range(1, 12) if drawn[place] not in drawn[:place]]:
        sampling = replace(DRAWN, stop_token_ids=(drawn[place],))
        plain = cold("dense", "off")
        answered(plain, tokens, sampling)
        engine = cold("dense", "prediction")
        draft(engine, {"r": drawn}, 4, cycle([4]))
        answered(engine, tokens, sampling)
        assert engine.tokens("r") == drawn[: place + 1]
        assert_same(engine, plain, tokens)


@pytest.mark.parametrize("speculate", ["prediction", "tree"])
def test_text_that_a_grammar_forces_is_drafted_and_changes_nothing(speculate: str) -> None:
    """Beside rows without a grammar."""
    words = Grammar(GrammarKind.REGEX, "(celsius: [0-9], fahrenheit: [0-9]; ){40}")
    sampling, tokens = replace(DRAWN, grammar=words), prompt(70)
    others = {f"other {number}": prompt(40 + number, seed=number) for number in range(3)}
    found = []
    for engine in (cold("dense", "off"), cold("dense", speculate)):
        for name, other in others.items():
            engine.post(submit(name, other, NEW, sampling=DRAWN))
        answered(engine, tokens, sampling)
        found.append({name: engine.tokens(name) for name in ("r", *others)})
    assert found[0] == found[1]
    (use,) = (use for use in engine.finished("r").usage.drafts if use.source == "grammar")
    assert sum(use.drafted) > 5
    engine.assert_at_rest()
