"""Tests: engines with FP8 rows in their pages give the tokens of a CPU computing each prompt in one
forward. One body for every device: a test file names its device in a subclass of Fp8Answers."""

from dataclasses import replace
from functools import cache
from typing import ClassVar

from tasuki.engine.assembly.parts import EngineParts, build_parts
from tasuki.engine.config import EngineConfig
from tasuki.pycache.arena import Arena

from .covering import every_value
from .engines import Lone, engine_config, submit
from .goldens import OWN_MODELS, cases_of, reference_dir


def config(model: str, **changes: object) -> EngineConfig:
    return engine_config(reference_dir(model), kv_dtype="fp8", **changes)


@cache
def parts(model: str, device: str = "cpu") -> EngineParts:
    return build_parts(config(model, device=device))


@cache
def _engine(model: str, device: str, **changes: object) -> Lone:
    """Return one engine for each model and device, because graphs on a GPU are captured only
    once."""
    of = parts(model, device)
    own = Arena(of.layout, of.arena.slabs, device)
    settings = config(model, device=device, **{"max_batch": 8, **changes})
    return Lone(settings, parts=replace(of, arena=own))


def engine(model: str, device: str = "cpu", **changes: object) -> Lone:
    """Return an engine at rest over its own arena, with an empty cache."""
    found = _engine(model, device, **changes)
    found.flush()
    return found


@cache
def whole(model: str) -> dict[str, list[int]]:
    """Return a CPU's answer to each golden prompt, computed in one forward."""
    lone = engine(model, prefill_chunk_tokens=4096)
    return {n: lone.ask(n, case.prompt, len(case.greedy)) for n, case in cases_of(model).items()}


def assert_answered_as_whole(lone: Lone, model: str) -> None:
    """Assert the engine's answers to all goldens of the model. Each request has its golden's
    name."""
    assert {name: lone.tokens(name) for name in whole(model)} == whole(model)
    lone.assert_at_rest()


class Fp8Answers:
    device: ClassVar[str]

    @every_value(
        model={name: name for name in OWN_MODELS}, chunk={"64": 64, "128": 128, "512": 512}
    )
    def test_chunks_and_batches_change_no_token(self, model: str, chunk: int) -> None:
        lone = engine(model, self.device, prefill_chunk_tokens=chunk)
        for name, case in cases_of(model).items():
            lone.post(submit(name, case.prompt, len(case.greedy)))
        lone.run()
        assert_answered_as_whole(lone, model)

    @every_value(model={name: name for name in OWN_MODELS}, at={"64": 64, "128": 128})
    def test_a_hit_changes_no_token(self, model: str, at: int) -> None:
        for name, case in cases_of(model).items():
            if len(case.prompt) <= at + 1:
                continue
            lone = engine(model, self.device)
            lone.ask("first", case.prompt[: at + 1], 1)
            assert lone.ask("resumed", case.prompt, len(case.greedy)) == whole(model)[name]
            assert lone.hit("resumed").usable_tokens == at + 1
