"""A request that breaks the forward, or has NaN logits, ends alone whatever shares its batch.
Nothing of it stays in the cache. An invalid first token never reaches the model."""

import math
from collections.abc import Callable
from dataclasses import replace
from queue import SimpleQueue
from typing import Any

import pytest
import torch

from tasuki.engine import messages as m
from tasuki.engine.assembly.parts import EngineParts
from tasuki.engine.config import Role
from tasuki.engine.forward_plan import ForwardPlan, PlanGap
from tasuki.engine.runner.base import DeviceLost, SampledTokens
from tasuki.engine.runner.cpu_runner import CpuForward, CpuRunner
from tasuki.engine.thread import EngineThread
from tasuki.model.forward import Batch
from tests.harness.engine_pair import engine_pair, with_early_head
from tests.harness.engines import (
    Lone,
    alone,
    assert_answered_as_alone,
    prompt,
    submit,
    tiny_engine,
    tiny_parts,
)
from tests.harness.waiting import HANG_SECONDS

POISON = 127
GOOD = {f"good-{n}": [t % POISON for t in prompt(40 + 37 * n, n)] for n in range(3)}
BAD = [t % POISON for t in prompt(300, 9)]


def run_among_others(engine: Lone, bad: m.Submit, tokens: int) -> None:
    """Assert that the bad request ends with an error after so many tokens, and the others are
    answered as if alone."""
    first, *later = GOOD
    engine.post(submit(first, GOOD[first], 30))
    engine.post(bad)
    for name in later:
        engine.post(submit(name, GOOD[name], 30))
    engine.run()
    assert engine.rejected(bad.request_id).kind is m.ErrorKind.INTERNAL
    assert len(engine.tokens(bad.request_id)) == tokens
    assert_answered_as_alone(engine, GOOD, 30)
    engine.assert_at_rest()


def break_where(engine: Lone, broken: Callable[[Batch], bool]) -> Callable[[], int]:
    """Make forwards of such batches raise half-way, when the cache may be half written. Return a
    counter of raised ones."""
    forward, raised = engine.parts.model.forward, []

    def breaking(batch: Batch, *rest: object) -> object:
        logits = forward(batch, *rest)
        if broken(batch):
            raised.append(batch)
            raise RuntimeError("poisoned")
        return logits

    engine.parts.model.forward = breaking  # type: ignore[method-assign]
    return lambda: len(raised)


def has_poison(batch: Batch) -> bool:
    return POISON in batch.token_ids


def is_long(batch: Batch) -> bool:
    """Return whether the poisoned request, the longest, has answered a few tokens."""
    return bool((batch.positions > 305).any())


@pytest.mark.parametrize(("where", "its_tokens"), [(has_poison, 0), (is_long, 7)])
def test_a_poisoned_request_fails_alone(where: Callable[[Batch], bool], its_tokens: int) -> None:
    engine = tiny_engine(prefill_chunk_tokens=256)
    raised = break_where(engine, where)
    middle = POISON if where is has_poison else BAD[150]
    run_among_others(engine, submit("bad", [*BAD[:150], middle, *BAD[151:]], 30), its_tokens)
    # Once among others, at most once more for each time it joined them again, and once alone.
    assert 2 <= raised() <= 4


def test_a_lone_request_is_not_tried_twice() -> None:
    engine = tiny_engine()
    raised = break_where(engine, has_poison)
    engine.ask("bad", [POISON] * 10, 4)
    assert engine.rejected("bad").kind is m.ErrorKind.INTERNAL
    assert raised() == 1
    engine.assert_at_rest()


def test_a_fault_that_passes_costs_time_only() -> None:
    engine = tiny_engine(prefill_chunk_tokens=256)
    fails = [True]
    break_where(engine, lambda batch: len(batch.context_lens) > 1 and bool(fails) and fails.pop())
    engine.ask_all(GOOD, 12)
    assert not fails
    assert_answered_as_alone(engine, GOOD, 12)
    engine.assert_at_rest()


def test_a_plan_that_the_runner_refuses_ends_the_loop_and_no_single_request() -> None:
    engine = tiny_engine()
    engine.engine._plans._planner._number += 1
    said: list[m.Outbox] = []
    died: SimpleQueue[str] = SimpleQueue()
    thread = EngineThread(engine.engine, said.extend, died.put)
    thread.start()
    for name, tokens in GOOD.items():
        thread.post(submit(name, tokens, 4))
    assert PlanGap.__name__ in died.get(timeout=HANG_SECONDS)
    thread.stop()
    assert not said


class Sticky(CpuRunner):
    """A runner that fails in every call from its sixth forward on, as CUDA does on a poisoned
    context."""

    calls = 0
    at_launch = True

    def launch(self, plan: ForwardPlan) -> CpuForward:
        self.calls += 1
        if self.calls < 6:
            return super().launch(plan)
        if self.at_launch:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")
        return Lost(SampledTokens.nothing(0), 0.0, 0.0)

    def check_device(self) -> None:
        if self.calls >= 6:
            raise DeviceLost("CUDA error: an illegal memory access was encountered")


class Lost(CpuForward):
    def result(self) -> SampledTokens:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")


@pytest.mark.parametrize("at_launch", [True, False])
def test_no_forward_is_tried_on_a_device_that_is_lost(at_launch: bool) -> None:
    runners: list[Sticky] = []

    def sticky(parts: EngineParts, hands_on: bool) -> Sticky:
        runners.append(Sticky(parts.model, parts.arena, parts.steps, parts.grammars))
        runners[0].at_launch = at_launch
        return runners[0]

    engine = tiny_engine(parts=replace(tiny_parts(), runner=sticky))
    said: list[m.Outbox] = []
    died: SimpleQueue[str] = SimpleQueue()
    thread = EngineThread(engine.engine, said.extend, died.put)
    thread.start()
    for name, tokens in GOOD.items():
        thread.post(submit(name, tokens, 30))
    reason = died.get(timeout=120)
    assert DeviceLost.__name__ in reason and "restart this node" in reason
    thread.stop()
    # The forward in flight behind the failed one is the last.
    assert runners[0].calls <= (6 if at_launch else 7)
    # The front decides how requests end, because the engine judged no single one.
    assert not [message for message in said if isinstance(message, m.Finished | m.Rejected)]


@pytest.mark.parametrize(
    ("token", "logprob"),
    [
        *((token, 0.0) for token in (-1, 128, 2**31 - 1)),
        *((5, logprob) for logprob in (math.nan, math.inf, -math.inf)),
    ],
)
def test_a_first_token_that_is_none_is_a_lost_hand_over(token: int, logprob: float) -> None:
    engine = tiny_engine(role=Role.DECODE, local_prefill_tokens=0)
    engine.post(m.PeersChanged(True))
    engine.ask("r", GOOD["good-1"], 6)
    (wanted,) = engine.all_said(m.HandoverWanted)
    transfer_id = wanted.transfer_request.transfer_id
    engine.post(m.GrantWanted(transfer_id))
    engine.run()
    hit = m.HitBreakdown(77, 0, 0, {}, None)
    engine.post(m.RemoteReady(transfer_id, token, logprob, 1.0, hit, "prefill"))
    assert m.HandoverCancelled(transfer_id) in engine.said
    engine.post(m.WriterFenced(transfer_id))
    engine.run()
    assert engine.tokens("r") == alone(GOOD["good-1"], 6)
    assert engine.finished("r").usage.local_fallback
    engine.assert_at_rest()


Spoil = Callable[[torch.Tensor], None]


def nan_row(row: torch.Tensor) -> None:
    row.fill_(math.nan)


def one_nan(row: torch.Tensor) -> None:
    row[77] = math.nan


def one_infinite(row: torch.Tensor) -> None:
    row[3] = math.inf


def spoil_from(engine: Lone, position: int, spoil: Spoil = nan_row) -> None:
    """Spoil the logits of tokens at or after the position from now on."""
    forward = engine.parts.model.forward

    def spoiling(batch: Batch, *rest: Any) -> torch.Tensor:
        logits = forward(batch, *rest)
        ends = batch.positions[batch.cu_seqlens[1:].long() - 1]
        for row, end in enumerate(ends.tolist()):
            if end >= position:
                spoil(logits[row])
        return logits

    engine.parts.model.forward = spoiling  # type: ignore[method-assign]


def assert_ended_unsound(engine: Lone, name: str) -> None:
    error = engine.rejected(name)
    assert error.kind is m.ErrorKind.INTERNAL
    assert "logits were NaN" in error.message
    told = [*engine.all_said(m.TokenOut), *engine.all_said(m.PrefillToken)]
    assert all(math.isfinite(token.logprob) and not math.isnan(token.margin) for token in told)


@pytest.mark.parametrize("spoil", [nan_row, one_nan, one_infinite])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("answered", [0, 5])
def test_the_request_ends_alone(answered: int, temperature: float, spoil: Spoil) -> None:
    engine = tiny_engine(prefill_chunk_tokens=256)
    spoil_from(engine, len(BAD) - 1 + answered, spoil)
    bad = submit("bad", BAD, 30)
    bad = replace(bad, sampling=replace(bad.sampling, temperature=temperature))
    run_among_others(engine, bad, answered)
    assert_ended_unsound(engine, "bad")
    assert all("Retracted" not in engine.phases(name) for name in GOOD)


def test_nothing_of_the_forward_that_spoiled_stays_in_the_cache() -> None:
    engine = tiny_engine(prefill_chunk_tokens=512)
    forward = engine.parts.model.forward
    spoil_from(engine, len(BAD) - 1)
    engine.ask("bad", BAD, 3, marks=(64, 128))
    assert_ended_unsound(engine, "bad")
    engine.parts.model.forward = forward  # type: ignore[method-assign]
    assert engine.ask("again", BAD, 3) == alone(BAD, 3)
    hit = engine.hit("again")
    assert hit.usable_tokens == hit.kv_tokens == 0
    engine.assert_at_rest()


def test_a_prefill_node_refuses_the_room_and_the_prompt_is_computed_here() -> None:
    with engine_pair(tiny_parts(), tiny_parts()) as pair:
        spoil_from(pair.prefill, 0)
        pair.prefill.said.clear()
        with pytest.raises(IndexError):  # no first token comes
            pair.hand_over(submit("r", GOOD["good-1"], 6))
        (refused,) = pair.prefill.all_said(m.PrefillRefused)
        assert "logits were NaN" in refused.error.message
        pair.decode.post(m.HandoverFailed(refused.transfer_id, refused.error.message))
        pair.decode.post(m.WriterFenced(refused.transfer_id))
        pair.prefill.post(m.PrefillEnd(refused.transfer_id))
        pair.decode.run()
        assert pair.decode.tokens("r") == alone(GOOD["good-1"], 6)
        pair.prefill.assert_at_rest()
        pair.decode.assert_at_rest()


def test_an_early_step_of_no_numbers_ends_its_request() -> None:
    parts = with_early_head(tiny_parts(), lambda plain: plain().fill_(math.nan))
    with engine_pair(tiny_parts(), parts) as pair:
        pair.join(pair.begin(submit("r", prompt(90), 6)))
        assert_ended_unsound(pair.decode, "r")
        assert len(pair.decode.tokens("r")) == 1
        pair.decode.assert_at_rest()
