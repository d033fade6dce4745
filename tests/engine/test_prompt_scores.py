"""Logprobs of a prompt's own tokens equal a plain forward's for every cut of the prompt. They use
nothing from the cache and leave nothing in it."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from tasuki.engine import messages as m
from tasuki.engine.assembly.memory_plan import MemoryPlan
from tasuki.engine.config import EngineConfig, Role
from tasuki.engine.forward_plan import ForwardPlan, PlanError, ScoredRow, decode_plan
from tasuki.engine.intake import MAX_PROMPT_SCORES, Intake
from tasuki.model.forward import Batch
from tasuki.model.ops.sampling.params import MAX_TOP_LOGPROBS, SamplingParams
from tasuki.model.ops.sampling.prompt_scores import SCORED_ROWS, PromptScores, score_rows
from tests.harness.covering import every_value
from tests.harness.engine_goldens import cold_engine
from tests.harness.engine_pair import engine_pair
from tests.harness.engines import TINY, Lone, alone, prompt, submit, tiny_engine, tiny_parts
from tests.harness.goldens import (
    OWN_MODELS,
    Request,
    Workspace,
    cases_of,
    final_hidden,
    load_model,
    logits_of,
)
from tests.harness.qwen35 import config_of


def scores(engine: Lone, name: str) -> PromptScores:
    """Return all scores of a request and assert that its parts are contiguous."""
    pieces = [piece for piece in engine.all_said(m.PromptScored) if piece.request_id == name]
    ends = [1, *(piece.first + len(piece) for piece in pieces)]
    assert [piece.first for piece in pieces] == ends[:-1]
    columns = ("logprobs", "ranks", "top_tokens", "top_logprobs")
    return PromptScores(
        *(np.concatenate([getattr(piece, column) for piece in pieces]) for column in columns)
    )


def ask(engine: Lone, name: str, tokens: list[int], top: int, new: int = 0) -> PromptScores:
    sampling = SamplingParams(max_new_tokens=new, ignore_eos=True)
    engine.post(submit(name, tokens, new, sampling=sampling, prompt_logprobs=top))
    engine.run()
    assert len(engine.tokens(name)) == new
    return scores(engine, name)


@every_value(model={name: name for name in OWN_MODELS}, chunk={"64": 64, "512": 512})
def test_scores_equal_a_plain_forward_s_and_the_goldens_last_logits(model: str, chunk: int) -> None:
    plain = load_model(model)
    engine = cold_engine(model, "cpu", prefill_chunk_tokens=chunk)
    for name, case in cases_of(model).items():
        tokens = [*case.prompt, case.greedy[0]]
        request = Request(Workspace(plain), len(tokens))
        batch = Batch.pack([request.slice(tokens)])
        logits = logits_of(plain, final_hidden(plain, batch, request.workspace.arena))
        expected = logits.double().log_softmax(dim=-1)[:-1]
        if "last_logits" in case.arrays:
            last = case.tensor("last_logits").double().log_softmax(dim=-1)
            torch.testing.assert_close(expected[-1], last, rtol=0, atol=1e-3)
            expected[-1] = last
        found = ask(engine, name, tokens, 3)
        targets = torch.tensor(tokens[1:])
        close = {"rtol": 0.0, "atol": case.tolerance["fp32_logits_abs"]}
        own = expected.gather(1, targets[:, None])
        torch.testing.assert_close(torch.from_numpy(found.logprobs), own[:, 0], **close)
        best = expected.topk(3).values
        torch.testing.assert_close(torch.from_numpy(found.top_logprobs), best, **close)
        named = torch.from_numpy(found.top_tokens).long()
        torch.testing.assert_close(expected.gather(1, named), best, **close)
        # The rank counts tokens equally likely within the tolerance.
        ranks = torch.from_numpy(found.ranks)
        margin = 2 * close["atol"]
        assert ((expected > own + margin).sum(dim=-1) < ranks).all()
        assert (ranks <= (expected >= own - margin).sum(dim=-1)).all()
        engine.assert_at_rest()


@pytest.mark.parametrize("length", [1, 2, 3, 33, 64, 65, 66, 129, 300])
@pytest.mark.parametrize("new", [0, 1, 5])
def test_prompts_of_every_length_are_scored_whole_before_their_answer(
    length: int, new: int
) -> None:
    tokens = prompt(length)
    engine = tiny_engine(prefill_chunk_tokens=64)
    if length == 1:
        sampling = SamplingParams(max_new_tokens=new, ignore_eos=True)
        engine.post(submit("r", tokens, new, sampling=sampling, prompt_logprobs=0))
        engine.run()
        assert not engine.all_said(m.PromptScored)
    else:
        whole = ask(tiny_engine(prefill_chunk_tokens=4096), "r", tokens, 20)
        found = ask(engine, "r", tokens, 20, new)
        np.testing.assert_allclose(found.logprobs, whole.logprobs, rtol=0, atol=1e-4)
        assert found.top_tokens.shape == (length - 1, 20)
        kinds = [
            type(item) for item in engine.said if isinstance(item, m.PromptScored | m.TokenOut)
        ]
        assert kinds == sorted(kinds, key=lambda kind: kind is m.TokenOut)
    if new:
        assert engine.tokens("r") == alone(tokens, new)
    assert engine.finished("r").usage.completion_tokens == new
    engine.assert_at_rest()


def test_the_likeliest_are_left_out_where_none_is_asked_for() -> None:
    found = ask(tiny_engine(), "r", prompt(40), 0)
    assert found.top_tokens.shape == found.top_logprobs.shape == (39, 0)
    assert np.isfinite(found.logprobs).all() and (found.ranks >= 1).all()


def test_a_scored_prompt_uses_nothing_cached_and_leaves_nothing() -> None:
    engine = tiny_engine()
    tokens = prompt(300)
    engine.ask("before", tokens, 4)
    kept = engine.stats().pages["tree"], engine.stats().slots["tree"]
    found = ask(engine, "scored", tokens, 2, new=4)
    assert len(found) == 299 and engine.hit("scored").usable_tokens == 0
    assert engine.tokens("scored") == engine.tokens("before")
    assert (engine.stats().pages["tree"], engine.stats().slots["tree"]) == kept
    engine.ask("after", tokens, 4)
    assert engine.hit("after").usable_tokens >= 256
    engine.assert_at_rest()


def test_scored_prompts_that_give_way_are_scored_once() -> None:
    engine = tiny_engine(arena_mib=0.3, prefill_chunk_tokens=64)
    prompts = {f"r{place}": prompt(150, seed=place) for place in range(6)}
    sampling = SamplingParams(max_new_tokens=200, ignore_eos=True)
    for name, tokens in prompts.items():
        engine.post(submit(name, tokens, 200, sampling=sampling, prompt_logprobs=1))
    engine.run()
    assert engine.stats().tree["leased_requests"] > len(prompts), "no request gave way"
    for name, tokens in prompts.items():
        assert len(scores(engine, name)) == 149
        assert engine.tokens(name) == alone(tokens, 200)
    engine.assert_at_rest()


def test_an_abort_while_a_prompt_is_scored_leaves_nothing() -> None:
    for steps in range(6):
        engine = tiny_engine(prefill_chunk_tokens=64)
        engine.post(submit("r", prompt(200), 4, prompt_logprobs=2))
        for _ in range(steps):
            engine.step()
        engine.post(m.Abort(m.RequestId("r")))
        engine.run()
        engine.assert_at_rest()
        assert engine.stats().pages["tree"] == 0


def test_a_decode_node_scores_its_prompts_itself() -> None:
    with engine_pair(tiny_parts(), tiny_parts()) as pair:
        assert len(ask(pair.decode, "r", prompt(200), 1, new=3)) == 199
        assert not pair.decode.all_said(m.HandoverWanted)
        assert pair.decode.tokens("r") == alone(prompt(200), 3)
        pair.decode.assert_at_rest()


@pytest.mark.parametrize(
    ("top", "length", "kind"),
    [
        (-1, 10, m.ErrorKind.INVALID),
        (21, 10, m.ErrorKind.INVALID),
        (20, MAX_PROMPT_SCORES // 21 + 1, m.ErrorKind.TOO_LONG),
    ],
)
def test_what_is_too_much_is_refused(top: int, length: int, kind: m.ErrorKind) -> None:
    engine = tiny_engine(arena_mib=64)
    engine.engine._intake._limits = replace(engine.engine._intake._limits, max_position=1 << 20)
    engine.post(submit("r", prompt(length), 1, prompt_logprobs=top))
    engine.run()
    error = engine.rejected("r")
    assert error.kind is kind and error.message.startswith("prompt_logprobs")


def test_as_many_numbers_as_an_answer_may_hold_are_taken() -> None:
    intake = Intake(None, None, print)  # type: ignore[arg-type]
    most = np.zeros(MAX_PROMPT_SCORES // 2, np.int32)
    assert intake.scoring_refusal(most, 1) is None
    refused = intake.scoring_refusal(np.append(most, most[:1]), 1)
    assert refused is not None and refused.kind is m.ErrorKind.TOO_LONG


def test_a_prompt_whose_logits_are_no_numbers_ends_with_an_error() -> None:
    engine = tiny_engine(prefill_chunk_tokens=64)
    head = engine.parts.model.head

    def spoilt(branch: torch.Tensor, *rest: object) -> torch.Tensor:
        logits = head(branch, *rest)  # type: ignore[arg-type]
        if len(logits) > 4:
            logits[3] = math.nan
        return logits

    engine.parts.model.head = spoilt  # type: ignore[method-assign]
    engine.post(submit("r", prompt(100), 4, prompt_logprobs=0))
    engine.run()
    assert engine.rejected("r").kind is m.ErrorKind.INTERNAL
    engine.assert_at_rest()


def test_few_rows_stand_at_a_time_and_the_plan_counts_them() -> None:
    seen = []

    def head(rows: torch.Tensor) -> torch.Tensor:
        seen.append(len(rows))
        return torch.eye(200)[rows]

    rows = torch.arange(100)
    found = score_rows(head, rows, rows, 1).values()
    assert max(seen) == SCORED_ROWS and sum(seen) == 100
    assert (found.ranks == 1).all() and found.top_tokens[:, 0].tolist() == rows.tolist()
    shapes = [config_of(TINY | {"vocab_size": vocab}) for vocab in (128, 1 << 17)]
    small, large = (
        MemoryPlan.of(shape, EngineConfig(arena_mib=4, max_batch=1), 80 << 30, Role.FUSED)
        for shape in shapes
    )
    assert large.workspace - small.workspace >= SCORED_ROWS * ((1 << 17) - 128) * 24


def test_a_plan_carries_what_is_scored() -> None:
    plan = ForwardPlan(7, scored=(ScoredRow(0, 64, 3, 12), ScoredRow(2, 1, 0, 5)))
    assert decode_plan(plan.encode()).scored == plan.scored


def test_a_plan_that_scores_what_its_row_does_not_have_is_refused() -> None:
    engine = tiny_engine()
    runner = engine.engine._plans._runner
    launch = runner.launch

    def launch_wrong(plan: ForwardPlan) -> object:
        if plan.scored:
            plan = replace(plan, scored=(replace(plan.scored[0], count=10_000),))
        return launch(plan)

    runner.launch = launch_wrong  # type: ignore[method-assign]
    engine.post(submit("r", prompt(40), 1, prompt_logprobs=0))
    with pytest.raises(PlanError, match="scores tokens"):
        engine.run()


@pytest.mark.parametrize(
    ("top", "fits"),
    [(None, True), (0, True), (MAX_TOP_LOGPROBS, True), (-1, False), (MAX_TOP_LOGPROBS + 1, False)],
)
def test_so_many_of_the_likeliest_may_be_asked_for(top: int | None, fits: bool) -> None:
    # It looks only at the requested number.
    intake = Intake(None, None, print)  # type: ignore[arg-type]
    assert (intake.scoring_refusal(prompt(3, 1), top) is None) is fits
