"""Every greedy token of every golden through the engine: whole, chunked, resumed, second turn."""

from functools import cache

import numpy as np
import pytest
from tasuki.engine.build import EngineParts, build_parts
from tasuki.engine.config import EngineConfig
from tasuki.engine.messages import HitBreakdown

from tests.harness.engines import Lone, engine_config, submit
from tests.harness.goldens import MODELS, cases_of, model_cases, reference_dir


@cache
def _parts(config: EngineConfig) -> EngineParts:
    return build_parts(config)


def engine_for(model: str, **changes: object) -> Lone:
    config = engine_config(reference_dir(model), **changes)
    return Lone(config, parts=_parts(config))


@pytest.mark.parametrize("chunk", [64, 128, 512])
@pytest.mark.parametrize("model", MODELS)
def test_every_case_in_one_batch(model: str, chunk: int) -> None:
    engine = engine_for(model, prefill_chunk_tokens=chunk)
    cases = cases_of(model)
    for name, case in cases.items():
        engine.post(submit(name, case.prompt, len(case.greedy)))
    engine.run()
    for name, case in cases.items():
        assert engine.tokens(name) == case.greedy, name
    engine.assert_at_rest()


@pytest.mark.parametrize("at", [64, 128])
@pytest.mark.parametrize("model", MODELS)
def test_resumed_from_a_checkpoint(model: str, at: int) -> None:
    for case in cases_of(model).values():
        if len(case.prompt) <= at + 1:
            continue
        engine = engine_for(model)
        engine.post(submit("first", case.prompt[: at + 1], 1))
        engine.run()
        engine.post(submit("resumed", case.prompt, len(case.greedy)))
        engine.run()
        hit = engine.finished("resumed").usage.hit
        # "first" ended at its prompt's end, one token past the page: that is a repeat resumes.
        assert hit is not None and hit.usable_tokens == at + 1
        assert engine.tokens("resumed") == case.greedy


@pytest.mark.parametrize("model", [model for model, case in model_cases() if case == "turn2"])
def test_second_turn_after_a_cached_first(model: str) -> None:
    cases = cases_of(model)
    engine = engine_for(model)
    for name in ("long", "turn2"):
        engine.post(submit(name, cases[name].prompt, len(cases[name].greedy)))
        engine.run()
        assert engine.tokens(name) == cases[name].greedy
    hit = engine.finished("turn2").usage.hit
    assert hit is not None and hit.usable_tokens == 192


def test_resumed_inside_a_long_prompt_that_another_left() -> None:
    """Long is what takes more KV than a state: of the goldens one prompt. The engine learns where
    documents are left, keeps a state inside the next one while it is first computed, and a golden
    that leaves it too resumes there with equal tokens."""
    model = "small-dense"
    case = cases_of(model)["turn2"]
    left = len(case.prompt) - 100
    engine = engine_for(model)
    random = np.random.default_rng(5)

    def ask(name: str, tokens: list[int], count: int) -> HitBreakdown:
        engine.post(submit(name, tokens, count))
        engine.run()
        hit = engine.finished(name).usage.hit
        assert hit is not None
        return hit

    for document in range(3):
        shared = random.integers(1, 300, left).tolist()
        for asked in range(2):
            question = random.integers(1, 300, 100).tolist()
            ask(f"{document}.{asked}", shared + question, 1)
    other = random.integers(1, 300, 100).tolist()
    ask("first", case.prompt[:left] + other, 1)
    hit = ask("golden", case.prompt, len(case.greedy))
    assert hit.checkpoint_source == "interior"
    assert 0 < hit.usable_tokens <= left
    assert engine.tokens("golden") == case.greedy
    engine.assert_at_rest()
