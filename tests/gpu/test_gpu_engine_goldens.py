"""Every greedy token of every golden in float32 on the GPU: whole, chunked, resumed, second turn.

Prompts run through the prefill kernels, answers through decode graphs; memory that changes owner is
filled with NaN.
"""

from functools import cache

import pytest
from tasuki.engine.build import EngineParts, build_parts
from tasuki.engine.config import EngineConfig

from tests.harness.engines import Lone, engine_config, submit
from tests.harness.goldens import MODELS, cases_of, model_cases, reference_dir


@cache
def _parts(config: EngineConfig) -> EngineParts:
    return build_parts(config)


@cache
def engine_for(model: str, **changes: object) -> Lone:
    """One engine a setting, flushed by whoever wants a cold one: graphs are captured once."""
    config = engine_config(reference_dir(model), device="cuda", **changes)
    return Lone(config, parts=_parts(config))


def cold(model: str, **changes: object) -> Lone:
    engine = engine_for(model, **changes)
    engine.flush()
    return engine


@pytest.mark.parametrize("chunk", [64, 128, 512])
@pytest.mark.parametrize("model", MODELS)
def test_every_case_in_one_batch(model: str, chunk: int) -> None:
    engine = cold(model, prefill_chunk_tokens=chunk)
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
        engine = cold(model)
        engine.post(submit("first", case.prompt[: at + 1], 1))
        engine.run()
        engine.post(submit("resumed", case.prompt, len(case.greedy)))
        engine.run()
        hit = engine.finished("resumed").usage.hit
        assert hit is not None and hit.usable_tokens == at + 1
        assert engine.tokens("resumed") == case.greedy


@pytest.mark.parametrize("model", [model for model, case in model_cases() if case == "turn2"])
def test_second_turn_after_a_cached_first(model: str) -> None:
    cases = cases_of(model)
    engine = cold(model)
    for name in ("long", "turn2"):
        engine.post(submit(name, cases[name].prompt, len(cases[name].greedy)))
        engine.run()
        assert engine.tokens(name) == cases[name].greedy
    hit = engine.finished("turn2").usage.hit
    assert hit is not None and hit.usable_tokens == 192
