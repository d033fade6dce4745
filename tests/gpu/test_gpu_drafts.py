"""Answers with drafts on a GPU have the tokens, logprobs, hits and trees of answers without, and
the right number of accepted drafts. Memory with a new owner is NaN until it is written."""

from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import pytest

from tasuki.engine.config import EngineConfig
from tasuki.model.grammar.grammar import Grammar, GrammarKind
from tests.gpu.shapes import CONFIGS, parts_of
from tests.harness.draft_cuts import DraftCuts
from tests.harness.engine_goldens import cold_engine
from tests.harness.engines import Lone, prompt, submit
from tests.harness.goldens import MODELS, cases_of
from tests.harness.scripted_drafts import DRAWN, NEW, answered, any_pattern, draft

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
    # Parts depend on the config, so each compared engine has its own arena.
    return Lone(config, parts=parts_of(shape, config))


def cold(shape: str, speculate: str) -> Lone:
    engine = engine_of(shape, speculate)
    engine.flush()
    return engine


@dataclass(frozen=True)
class GpuEngines:
    shape: str
    rows: int = ROWS

    def plain(self) -> Lone:
        return cold(self.shape, "off")

    def drafting(self) -> Lone:
        return cold(self.shape, "prediction")


@pytest.fixture(params=sorted(CONFIGS))
def engines(request: pytest.FixtureRequest) -> GpuEngines:
    return GpuEngines(request.param)


class TestDraftsOnTheGpu(DraftCuts):
    pass


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
