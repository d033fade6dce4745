"""The model's draft layer as the drafter on a GPU: answers and trees as without it, and guesses as
on a CPU. The number accepted is the same for every way of a prompt and of a request for a guess."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch

from tasuki.engine.config import EngineConfig
from tasuki.engine.speculation.drafting import MtpDrafter
from tasuki.model.drafts import DraftHead
from tasuki.model.ops.sampling.params import SamplingParams
from tests.gpu.shapes import CONFIGS, VOCAB, parts_of
from tests.harness.engines import Lone, prompt, submit
from tests.harness.scripted_drafts import (
    KINDS,
    NEW,
    answered,
    assert_kept_as_by_one_forward,
    assert_same,
)

ROWS = 12
# The noise, shared with guesses, decides most samples, so a layer of random weights is right.
HOT = replace(KINDS["drawn"], temperature=100.0)
CUT = replace(HOT, top_k=50, top_p=0.9)
PENALISED = replace(HOT, presence_penalty=1.5, repetition_penalty=1.7)
EVERY_KIND = KINDS | {"hot": HOT, "cut": CUT, "hot penalised": PENALISED}


def engine_config(speculate: str, most: int, device: str) -> EngineConfig:
    return EngineConfig(
        model="",
        dtype="float32",
        device=device,
        arena_mib=512 if device == "cuda" else 64,
        max_batch=ROWS,
        prefill_chunk_tokens=64,
        speculate=speculate,
        draft_count="most",
        draft_tokens=most,
    )


@cache
def engine_of(shape: str, speculate: str, most: int, device: str) -> Lone:
    config = engine_config(speculate, most, device)
    return Lone(config, parts=parts_of(shape, config, 1))


def cold(shape: str, speculate: str = "mtp", most: int = 3, device: str = "cuda") -> Lone:
    engine = engine_of(shape, speculate, most, device)
    engine.flush()
    return engine


@pytest.mark.parametrize("shape", sorted(CONFIGS))
@pytest.mark.parametrize("kind", EVERY_KIND)
@pytest.mark.parametrize("length", [1, 59, 64, 127])
def test_answers_and_trees_are_those_without_it(shape: str, kind: str, length: int) -> None:
    sampling, tokens = EVERY_KIND[kind], prompt(length)
    for most in (1, 3, 7):
        plain = cold(shape, "off")
        answered(plain, tokens, sampling)
        engine = cold(shape, most=most)
        answered(engine, tokens, sampling)
        usage = engine.finished("r").usage
        assert usage.drafted_tokens >= usage.accepted_tokens
        if kind == "hot":
            assert usage.accepted_tokens > NEW // 4
        assert_same(engine, plain, tokens)


Seen = list[tuple[tuple[int, ...], int]]


def guesses(
    engine: Lone, tokens: list[int], sampling: SamplingParams, monkeypatch: pytest.MonkeyPatch
) -> Seen:
    """Return the guesses for an answer, each with the number of tokens before it."""
    seen: Seen = []
    guessed, left_at_index = MtpDrafter.guessed, MtpDrafter.left_at_index

    def noted(self: MtpDrafter, found: tuple[int, ...], behind: int) -> None:
        seen.append((found, behind))
        guessed(self, found, behind)

    def noted_at_index(self: MtpDrafter, count: int, behind: int) -> None:
        drafts = engine.engine._plans._runner._stored_drafts  # type: ignore[attr-defined]
        [batch_index] = drafts._counts
        seen.append((tuple(drafts.tokens[batch_index, :count].tolist()), behind))
        left_at_index(self, count, behind)

    with monkeypatch.context() as patch:
        patch.setattr(MtpDrafter, "guessed", noted)
        patch.setattr(MtpDrafter, "left_at_index", noted_at_index)
        answered(engine, tokens, sampling)
    return seen


@pytest.mark.parametrize("kind", ["greedy", "hot", "cut", "hot penalised"])
def test_guesses_are_the_cpus(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    tokens, sampling = prompt(90), EVERY_KIND[kind]
    found = guesses(cold("dense"), tokens, sampling, monkeypatch)
    expected = guesses(cold("dense", device="cpu"), tokens, sampling, monkeypatch)
    assert found == expected
    assert len(found) > 5 and all(drafts for drafts, _ in found[:5])


@pytest.mark.parametrize("shape", sorted(CONFIGS))
def test_many_answers_are_guessed_together_and_leave_what_one_forward_keeps(shape: str) -> None:
    random = np.random.default_rng(6)
    asked = [random.integers(1, VOCAB, 40 + 17 * number).tolist() for number in range(ROWS)]
    plain, engine = cold(shape, "off"), cold(shape)
    for each in (plain, engine):
        for number, tokens in enumerate(asked):
            sampling = replace(HOT, seed=number, max_new_tokens=10 + 3 * number)
            each.post(submit(f"r{number}", tokens, sampling.max_new_tokens, sampling=sampling))
        each.run()
    oracle = engine_of(shape, "off", 3, "cpu").parts.model
    for number, tokens in enumerate(asked):
        answer = plain.tokens(f"r{number}")
        assert engine.tokens(f"r{number}") == answer
        assert engine.finished(f"r{number}").usage.accepted_tokens
        log = tokens + answer
        assert assert_kept_as_by_one_forward(engine, log, oracle) == len(log) - 1
    engine.assert_at_rest()


def test_as_many_are_accepted_behind_a_cached_prompt() -> None:
    engine, tokens = cold("dense"), prompt(150)
    first = engine.ask("cold", tokens, NEW, sampling=HOT)
    assert engine.ask("warm", tokens, NEW, sampling=HOT) == first
    assert engine.hit("warm").usable_tokens > 64
    counts = [engine.finished(name).usage for name in ("cold", "warm")]
    assert counts[0].drafted_tokens == counts[1].drafted_tokens
    assert counts[0].accepted_tokens == counts[1].accepted_tokens > 0


def test_guesses_before_a_forward_are_those_behind_the_one_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tokens = prompt(90)
    engine = cold("dense")
    answer = [token.token for token in answered(engine, tokens, HOT)]
    usual = engine.finished("r").usage
    # Guesses made beside a forward are lost, as if another node had computed it.
    monkeypatch.setattr(MtpDrafter, "left_at_index", lambda self, count, behind: None)
    engine = cold("dense")
    assert [token.token for token in answered(engine, tokens, HOT)] == answer
    usage = engine.finished("r").usage
    assert usage.accepted_tokens == usual.accepted_tokens > 0
    assert usage.drafted_tokens == usual.drafted_tokens
    engine.assert_at_rest()


def test_drafts_may_be_of_a_part_of_the_vocabulary(monkeypatch: pytest.MonkeyPatch) -> None:
    """The graphs read this part: no other token is guessed, and the sampled tokens are the same."""
    tokens, some = prompt(90), torch.arange(0, VOCAB, 2)
    answer = [token.token for token in answered(cold("dense", "off"), tokens, HOT)]
    config = replace(engine_config("mtp", 3, "cuda"), arena_mib=64)
    parts = parts_of("dense", config, 1)
    from tasuki.model.families.qwen3_5.gpu import Qwen35OnGpu

    model = Qwen35OnGpu(
        parts.model_config,
        parts.model.weights,
        parts.model.backend,
        drafts=DraftHead.of(parts.model.weights.head, some),
    )
    engine = Lone(config, parts=replace(parts, model=model))
    seen = guesses(engine, tokens, HOT, monkeypatch)
    assert engine.tokens("r") == answer
    assert engine.finished("r").usage.accepted_tokens
    assert {token % 2 for drafts, _ in seen for token in drafts} == {0}
    engine.assert_at_rest()


@pytest.mark.parametrize("steps", range(1, 7))
def test_what_gives_way_between_guesses_leaves_what_others_may_use(steps: int) -> None:
    tokens = prompt(150)
    plain = cold("dense", "off")
    answer = [token.token for token in answered(plain, tokens, HOT)]
    engine = cold("dense")
    engine.post(submit("r", tokens, NEW, sampling=HOT))
    engine.steps(steps)
    scheduler = engine.engine._scheduler
    for request in list(scheduler.running):
        scheduler._retract(request)
    engine.run()
    assert engine.tokens("r") == answer
    engine.assert_at_rest()
