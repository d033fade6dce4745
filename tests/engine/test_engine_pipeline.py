"""One forward is planned and launched while the one before is in flight."""

from dataclasses import replace

import pytest
from tasuki.engine import messages as m
from tasuki.engine.config import EngineConfig
from tasuki.engine.role import Role
from tasuki.engine.runner.base import HostRunner
from tasuki.model.ops.sampling.params import SamplingParams

from tests.engine.test_engine import alone, lone, prompt
from tests.harness.engines import Lone, submit, tiny_parts


def launches_of(engine: Lone, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Fills with the number of requests in each forward, as they are launched."""
    seen: list[int] = []
    launch = HostRunner.launch

    def recorded(self: HostRunner, work: list) -> object:
        seen.append(len(work))
        return launch(self, work)

    monkeypatch.setattr(HostRunner, "launch", recorded)
    return seen


def test_a_token_is_told_after_the_next_forward_was_launched(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine = lone()
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
        engine = lone(prefill_chunk_tokens=64)
        launches = launches_of(engine, monkeypatch)
        engine.post(submit("r", prompt(150), new))
        engine.run()
        assert len(launches) == 3 + new - 1


def test_a_stop_costs_one_forward_more_and_leaves_the_state_before_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    first = prompt(100)
    drawn = SamplingParams(max_new_tokens=10, temperature=60.0, seed=4, ignore_eos=True)
    oracle = lone()
    oracle.post(submit("r", first, 10, sampling=drawn))
    oracle.run()
    answer = oracle.tokens("r")
    stop = next(i for i in range(2, 10) if answer[i] not in answer[:i])
    engine = lone()
    launches = launches_of(engine, monkeypatch)
    sampling = replace(drawn, stop_token_ids=(answer[stop],))
    engine.post(submit("t1", first, 10, sampling=sampling))
    engine.run()
    assert engine.finished("t1").reason is m.FinishReason.STOP
    assert engine.tokens("t1") == answer[: stop + 1]
    assert len(launches) == stop + 2
    second = first + engine.tokens("t1") + prompt(30, seed=3)
    engine.post(submit("t2", second, 10))
    engine.run()
    hit = engine.finished("t2").usage.hit
    assert hit is not None
    assert (hit.usable_tokens, hit.checkpoint_source) == (100 + stop, "turn_end")
    assert engine.tokens("t2") == alone(second, 10)
    engine.assert_at_rest()


@pytest.mark.parametrize("steps", range(1, 7))
def test_a_retracted_request_draws_its_token_in_flight_again(steps: int) -> None:
    engine = lone(prefill_chunk_tokens=64)
    engine.post(submit("r", prompt(150), 8))
    for _ in range(steps):
        engine.step()
    scheduler = engine.engine._scheduler
    scheduler._retract(scheduler.running[0])
    engine.run()
    assert engine.tokens("r") == alone(prompt(150), 8)
    engine.assert_at_rest()


@pytest.mark.parametrize("cancelled", [False, True])
def test_a_sender_is_told_of_ids_once_the_device_is_done_with_them(
    cancelled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[bool] = []
    monkeypatch.setattr(HostRunner, "passed", lambda self: lambda: bool(done))
    engine = Lone(EngineConfig(model="tiny", dtype="float32"), Role.DECODE, tiny_parts())
    engine.post(m.PeersChanged(True))
    engine.post(submit("r", prompt(300), 2))
    engine.step()
    (wanted,) = [said for said in engine.said if isinstance(said, m.HandoverWanted)]
    engine.post(m.GrantWanted(wanted.ticket.room))

    def granted() -> list[m.Outbox]:
        return [said for said in engine.said if isinstance(said, m.HandoverGranted)]

    for _ in range(3):
        assert engine.step(), "a loop that sleeps now would never tell the grant"
        assert not granted()
    if cancelled:
        engine.post(m.Abort(m.RequestId("r")))
    done.append(True)
    engine.step()
    assert len(granted()) == (0 if cancelled else 1)
    assert not engine.step()
