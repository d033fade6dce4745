"""One forward is planned and launched while the one before is in flight."""

from dataclasses import replace

import pytest

from tasuki.engine import messages as m
from tasuki.engine.config import Role
from tasuki.engine.forward_plan import ForwardPlan
from tasuki.engine.runner.cpu_runner import CpuRunner
from tasuki.model.ops.sampling.params import SamplingParams
from tests.harness.engines import Lone, alone, prompt, submit, tiny_engine


def launches_of(engine: Lone, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list of the number of sequences in each launched forward."""
    seen: list[int] = []
    launch = CpuRunner.launch

    def recorded(self: CpuRunner, plan: ForwardPlan) -> object:
        seen.append(len(plan.rows))
        return launch(self, plan)

    monkeypatch.setattr(CpuRunner, "launch", recorded)
    return seen


def test_a_token_is_told_after_the_next_forward_was_launched(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine = tiny_engine()
    launches = launches_of(engine, monkeypatch)
    engine.post(submit("r", prompt(50), 4))
    told = []
    while engine.step():
        told.append((len(launches), len(engine.tokens("r"))))
    assert told == [(1, 0), (2, 1), (3, 2), (4, 3), (4, 4)]


def test_no_forward_is_wasted_on_an_answer_of_known_length(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for new in (1, 2, 7):
        engine = tiny_engine(prefill_chunk_tokens=64)
        launches = launches_of(engine, monkeypatch)
        engine.ask("r", prompt(150), new)
        assert len(launches) == 3 + new - 1


def test_a_stop_costs_one_forward_more_and_leaves_the_state_before_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    first = prompt(100)
    sampled = SamplingParams(max_new_tokens=10, temperature=60.0, seed=4, ignore_eos=True)
    answer = alone(first, 10, sampling=sampled)
    stop = next(i for i in range(2, 10) if answer[i] not in answer[:i])
    engine = tiny_engine()
    launches = launches_of(engine, monkeypatch)
    sampling = replace(sampled, stop_token_ids=(answer[stop],))
    assert engine.ask("t1", first, 10, sampling=sampling) == answer[: stop + 1]
    assert engine.finished("t1").reason is m.FinishReason.STOP
    assert len(launches) == stop + 2
    second = first + answer[: stop + 1] + prompt(30, seed=3)
    assert engine.ask("t2", second, 10) == alone(second, 10)
    hit = engine.hit("t2")
    assert (hit.usable_tokens, hit.checkpoint_source) == (100 + stop, "turn_end")
    engine.assert_at_rest()


@pytest.mark.parametrize("steps", range(1, 7))
def test_a_retracted_request_draws_its_token_in_flight_again(steps: int) -> None:
    engine = tiny_engine(prefill_chunk_tokens=64)
    engine.post(submit("r", prompt(150), 8))
    engine.steps(steps)
    scheduler = engine.engine._scheduler
    scheduler._retract(next(iter(scheduler.running)))
    engine.run()
    assert engine.tokens("r") == alone(prompt(150), 8)
    engine.assert_at_rest()


@pytest.mark.parametrize("cancelled", [False, True])
def test_a_sender_is_told_of_ids_once_the_device_is_done_with_them(
    cancelled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[bool] = []
    monkeypatch.setattr(CpuRunner, "record_event", lambda self: lambda: bool(done))
    engine = tiny_engine(role=Role.DECODE)
    engine.post(m.PeersChanged(True))
    engine.post(submit("r", prompt(300), 2))
    engine.step()
    (wanted,) = engine.all_said(m.HandoverWanted)
    engine.post(m.GrantWanted(wanted.transfer_request.transfer_id))
    for _ in range(3):
        assert engine.step(), "a loop that sleeps now would never tell the grant"
        assert not engine.all_said(m.HandoverGranted)
    if cancelled:
        engine.post(m.Abort(m.RequestId("r")))
    done.append(True)
    engine.step()
    assert len(engine.all_said(m.HandoverGranted)) == (0 if cancelled else 1)
    assert not engine.step()
