"""Answers of engines with recurrent states in bfloat16. The tokens are the same when a prompt is
cut, cached, drafted, handed over or shared among ranks."""

from dataclasses import replace
from functools import cache

import pytest
import torch

from tasuki.engine.assembly.parts import EngineParts, build_parts
from tasuki.pycache.arena import Arena
from tests.harness.engine_pair import engine_pair
from tests.harness.engines import Lone, engine_config, prompt, submit
from tests.harness.goldens import BESIDE, OWN_MODELS, cases_of, reference_dir
from tests.harness.rank_engines import rank_engine

DENSE, NEW_TOKENS = "small-dense", 24
STATES = {"ssm_dtype": "bfloat16"}


@cache
def parts(model: str) -> EngineParts:
    return build_parts(engine_config(reference_dir(model), **STATES))


def fresh_parts(model: str) -> EngineParts:
    return replace(parts(model), arena=Arena(parts(model).layout, parts(model).arena.slabs))


def engine(model: str, **changes: object) -> Lone:
    config = engine_config(reference_dir(model), **STATES, **changes)
    return Lone(config, parts=fresh_parts(model))


@cache
def whole(model: str) -> dict[str, list[int]]:
    """Return the answers with each prompt in one forward."""
    lone = engine(model, prefill_chunk_tokens=4096)
    return {name: lone.ask(name, case.prompt, NEW_TOKENS) for name, case in cases_of(model).items()}


@pytest.mark.parametrize("model", OWN_MODELS)
def test_chunks_and_batches_change_no_token(model: str) -> None:
    lone = engine(model, prefill_chunk_tokens=64)
    assert lone.parts.arena.views("ssm")[0].dtype == torch.bfloat16
    for name, case in cases_of(model).items():
        lone.post(submit(name, case.prompt, NEW_TOKENS))
    lone.run()
    assert {name: lone.tokens(name) for name in whole(model)} == whole(model)
    lone.assert_at_rest()


@pytest.mark.parametrize("at", [64, 65, 150])
def test_a_hit_changes_no_token(at: int) -> None:
    """A state at 65 or 150 tokens has one rounding that the whole prompt has not. It moves no token
    of these answers."""
    asked = cases_of(DENSE)["long"].prompt
    lone = engine(DENSE)
    lone.ask("first", asked[:at], 1)
    assert lone.ask("resumed", asked, NEW_TOKENS) == whole(DENSE)["long"]
    assert lone.hit("resumed").usable_tokens == at


def test_drafts_change_no_token() -> None:
    drafting, case = engine(DENSE, speculate="mtp", draft_tokens=3), "chunk1"
    assert drafting.ask("r", cases_of(DENSE)[case].prompt, NEW_TOKENS) == whole(DENSE)[case]
    assert drafting.finished("r").usage.drafted_tokens


@pytest.mark.parametrize("case", ["chunk1", "turn2"])
def test_a_hand_over_changes_no_token(case: str) -> None:
    asked = cases_of(DENSE)[case].prompt
    with engine_pair(fresh_parts(DENSE), fresh_parts(DENSE)) as pair:
        pair.join(pair.begin(submit("r", asked, NEW_TOKENS)))
        assert pair.decode.tokens("r") == whole(DENSE)[case]


@pytest.mark.slow
@pytest.mark.skipif(not (BESIDE / "tp4-dense").is_dir(), reason="no checkpoint whose heads divide")
def test_ranks_answer_as_one() -> None:
    folder, asked = reference_dir("tp4-dense"), prompt(150, seed=2)
    lone = Lone(engine_config(folder, **STATES))
    with rank_engine(folder, tensor_parallel=2, **STATES) as ranks:
        assert ranks.ask("r", asked, 12) == lone.ask("r", asked, 12)
