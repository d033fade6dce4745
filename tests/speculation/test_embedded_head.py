"""The embedded model's trained draft layer, on text outside its training data.

More drafts are accepted than chance allows, at every temperature. The answers are those without
drafts.
"""

import json
from functools import cache

import pytest
from tokenizers import Tokenizer

from tasuki.engine.assembly.parts import EngineParts, build_parts
from tasuki.model.named_checkpoints import embedded_model
from tasuki.model.ops.sampling.params import SamplingParams
from tests.harness.engines import Lone, engine_config

NEW = 48
MODEL = embedded_model()


@cache
def parts() -> EngineParts:
    return build_parts(engine_config(MODEL, arena_mib=64))


@cache
def prompts() -> list[list[int]]:
    text = (MODEL / "held_out.txt").read_text(encoding="utf-8")
    tokens = Tokenizer.from_file(str(MODEL / "tokenizer.json")).encode(text).ids
    return [tokens[at : at + 90] for at in (0, 300)]


def answers(speculate: str, sampling: SamplingParams) -> tuple[list[list[int]], float]:
    """Return the answers and the share of accepted drafts."""
    config = engine_config(MODEL, speculate=speculate, draft_tokens=3)
    engine = Lone(config, parts=parts())
    engine.flush()
    found, drafted, accepted = [], 0, 0
    for number, tokens in enumerate(prompts()):
        found.append(engine.ask(f"r{number}", tokens, NEW, sampling=sampling))
        usage = engine.finished(f"r{number}").usage
        drafted += usage.drafted_tokens
        accepted += usage.accepted_tokens
    engine.assert_at_rest()
    return found, accepted / max(drafted, 1)


@pytest.mark.parametrize(("temperature", "least"), [(0.0, 0.35), (0.8, 0.25)])
def test_drafts_hold_on_text_that_was_held_out(temperature: float, least: float) -> None:
    sampling = SamplingParams(max_new_tokens=NEW, temperature=temperature, seed=7, ignore_eos=True)
    plain, none = answers("off", sampling)
    drafted, share = answers("mtp", sampling)
    assert drafted == plain
    assert none == 0 and share >= least


def test_its_record_says_what_it_does_on_text_that_was_held_out() -> None:
    record = json.loads((MODEL / "draft_head.json").read_text(encoding="utf-8"))
    training = json.loads((MODEL / "training.json").read_text(encoding="utf-8"))
    assert record["corpus"]["sha256"] == training["corpus"]["sha256"]
    # Each step of a chain, of the rounded weights.
    assert min(record["published"]["agreed"]) > 0.6
    assert record["curve"][-1]["loss"] < 0.2 * record["curve"][0]["loss"]
