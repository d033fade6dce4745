"""Tests: an engine repeats every greedy token of every golden in float32, with the prompt whole,
chunked, resumed, and as a second turn. One body for every device: a test file names its own in a
subclass of EngineGoldens."""

from functools import cache
from typing import ClassVar

import pytest

from tasuki.engine.assembly.parts import EngineParts, build_parts
from tasuki.engine.config import EngineConfig
from tests.harness.covering import every_value
from tests.harness.engines import Lone, engine_config, submit
from tests.harness.goldens import MODELS, cases_of, model_cases, reference_dir

TWO_TURNS = [model for model, case in model_cases() if case == "turn2" and model in MODELS]


@cache
def _parts(config: EngineConfig) -> EngineParts:
    return build_parts(config)


@cache
def _engine(model: str, device: str, **changes: object) -> Lone:
    """Return one engine for each model and device, because graphs on a GPU are captured only
    once."""
    config = engine_config(reference_dir(model), device=device, **changes)
    return Lone(config, parts=_parts(config))


def cold_engine(model: str, device: str, **changes: object) -> Lone:
    """Return the engine of a model and device, at rest with an empty cache."""
    engine = _engine(model, device, **changes)
    engine.flush()
    return engine


class EngineGoldens:
    device: ClassVar[str]

    @every_value(model={name: name for name in MODELS}, chunk={"64": 64, "128": 128, "512": 512})
    def test_every_case_in_one_batch(self, model: str, chunk: int) -> None:
        engine = cold_engine(model, self.device, prefill_chunk_tokens=chunk)
        cases = cases_of(model)
        for name, case in cases.items():
            engine.post(submit(name, case.prompt, len(case.greedy)))
        engine.run()
        for name, case in cases.items():
            assert engine.tokens(name) == case.greedy, name
        engine.assert_at_rest()

    @every_value(model={name: name for name in MODELS}, at={"64": 64, "128": 128})
    def test_resumed_from_a_checkpoint(self, model: str, at: int) -> None:
        for case in cases_of(model).values():
            if len(case.prompt) <= at + 1:
                continue
            engine = cold_engine(model, self.device)
            engine.ask("first", case.prompt[: at + 1], 1)
            assert engine.ask("resumed", case.prompt, len(case.greedy)) == case.greedy
            # "first" ended at its prompt's end, one token past the page; a repeat resumes there.
            assert engine.hit("resumed").usable_tokens == at + 1

    @pytest.mark.parametrize("model", TWO_TURNS)
    def test_second_turn_after_a_cached_first(self, model: str) -> None:
        cases = cases_of(model)
        engine = cold_engine(model, self.device)
        for name in ("long", "turn2"):
            case = cases[name]
            assert engine.ask(name, case.prompt, len(case.greedy)) == case.greedy
        assert engine.hit("turn2").usable_tokens == 192
