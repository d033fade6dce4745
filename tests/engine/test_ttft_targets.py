"""A prompt is rejected at once if its first token would come after its target, and no other prompt
is."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from tasuki.engine import messages as m
from tasuki.engine.config import Role
from tasuki.engine.request import Request
from tasuki.engine.scheduling import admission
from tasuki.engine.scheduling.admission import EarlyRefusal, FirstTokenOutlook
from tasuki.model.ops.sampling.params import SamplingParams
from tests.harness.engines import Lone, engine_config, prompt, submit, tiny_parts
from tests.harness.waiting import ManualClock


def request(tokens: int = 100, caller: str = "ann", priority: int = 0) -> Request:
    prompt = np.ones(tokens, dtype=np.int32)
    name = m.RequestId("r")
    return Request(name, prompt, SamplingParams(), caller=caller, priority=priority)


class Node:
    """Answers one prompt after the other, each of 100 tokens in a second."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.outlook = FirstTokenOutlook(self.clock)

    def answer(self, prompts: int, seconds: float = 1.0) -> None:
        for _ in range(prompts):
            one = request()
            self.outlook.entered(one)
            self.clock.now += seconds
            self.outlook.left(one, answered=True)

    def enter(self, *requests: Request) -> None:
        for one in requests:
            self.outlook.entered(one)


def test_nothing_is_expected_before_some_work_was_seen() -> None:
    node = Node()
    node.answer(4)
    node.enter(request())
    assert node.outlook.seconds(request()) is None


def test_a_prompt_waits_for_those_before_it_and_for_itself() -> None:
    node = Node()
    node.answer(6)
    assert node.outlook.seconds(request()) is None, "nobody is before it"
    node.enter(request(), request())
    assert node.outlook.seconds(request(200)) == pytest.approx(4.0)


def test_idle_time_makes_no_node_slower() -> None:
    node = Node()
    for _ in range(6):
        node.answer(1)
        node.clock.now += 1000
    node.enter(request())
    assert node.outlook.seconds(request()) == pytest.approx(2.0)


def test_the_best_of_the_last_windows_counts() -> None:
    node = Node()
    node.answer(6)
    node.answer(5, seconds=10.0)
    node.enter(request())
    assert node.outlook.seconds(request()) == pytest.approx(2.0), "while others asked for little"
    node.answer(200, seconds=10.0)
    assert node.outlook.seconds(request()) == pytest.approx(20.0), "it has become slow"


def test_callers_take_turns() -> None:
    node = Node()
    node.answer(6)
    node.enter(*(request(caller="bob") for _ in range(50)))
    assert node.outlook.seconds(request(caller="ann")) == pytest.approx(2.0)
    assert node.outlook.seconds(request(caller="bob")) == pytest.approx(51.0)


def test_who_is_more_urgent_waits_for_no_others_of_its_caller() -> None:
    node = Node()
    node.answer(6)
    node.enter(*(request(priority=5) for _ in range(9)), request(priority=-5))
    assert node.outlook.seconds(request()) == pytest.approx(2.0)


def test_who_left_without_an_answer_counts_for_no_speed() -> None:
    node = Node()
    gone = request()
    node.enter(gone)
    node.clock.now += 3
    node.outlook.left(gone, answered=False)
    node.outlook.left(gone, answered=False)
    node.answer(2)
    node.enter(request())
    assert node.outlook.seconds(request()) == pytest.approx(200 / 40)


def test_who_is_refused_may_ask_again_once_what_is_too_much_is_over() -> None:
    outlook = SimpleNamespace(seconds=lambda *_: 5.0)
    refusals = EarlyRefusal(m.Targets(), outlook, None)  # type: ignore[arg-type]
    late = Request(m.RequestId("r"), np.ones(4, dtype=np.int32), SamplingParams())
    late.targets = m.Targets(first_token=2.0)
    error = refusals.reason(late, (), lambda _: 0.0)
    assert error is not None and error.retry_after == 3.0
    late.targets = m.Targets(first_token=5.0)
    assert refusals.reason(late, (), lambda _: 0.0) is None
    # Beside others its tokens come every 10 ms.
    steps = SimpleNamespace(seconds=lambda rows: 0.01, fitting=lambda target: 1)
    seats = SimpleNamespace(steps=steps, count=4)
    refusals = EarlyRefusal(m.Targets(), outlook, seats)  # type: ignore[arg-type]
    for target, taken in ((0.02, True), (0.01, True), (0.009, False)):
        late.targets = m.Targets(per_token=target)
        assert (refusals.reason(late, [late], lambda _: 0.0) is None) is taken


NOW = 1e-9
"""Seconds too short for any first token."""


@pytest.fixture
def lone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Lone:
    """Return an engine with an estimate from its latest work, with one request running and one
    waiting."""
    monkeypatch.setattr(admission, "_WINDOW_SECONDS", 1e-9)
    lone = Lone(engine_config(tmp_path, max_batch=1), Role.FUSED, tiny_parts())
    lone.ask("before", prompt(40), 2)
    lone.post(submit("runs", prompt(40), 12))
    lone.step()
    lone.post(submit("waits", prompt(40, seed=1), 4))
    return lone


def test_a_prompt_that_would_be_late_is_refused_and_the_others_go_on(lone: Lone) -> None:
    lone.post(submit("late", prompt(40, seed=2), 4, targets=m.Targets(NOW)))
    error = lone.rejected("late")
    assert error.kind is m.ErrorKind.OVERLOADED and "ask again in" in error.message
    assert error.retry_after is not None and error.retry_after > 0
    lone.run()
    assert len(lone.tokens("runs")) == 12 and len(lone.tokens("waits")) == 4
    lone.assert_at_rest()


def test_where_nobody_waits_even_a_target_that_cannot_be_met_is_served(lone: Lone) -> None:
    lone.run()
    assert len(lone.ask("alone", prompt(40, seed=3), 4, targets=m.Targets(NOW))) == 4


def test_a_prompt_that_will_be_in_time_is_taken(lone: Lone) -> None:
    lone.post(submit("in time", prompt(40, seed=2), 4, targets=m.Targets(1e9)))
    lone.run()
    assert len(lone.tokens("in time")) == 4


def test_forks_are_one_prompt(lone: Lone) -> None:
    lone.run()
    forks = tuple(m.Fork(m.RequestId(f"fork {n}"), n) for n in range(3))
    lone.post(submit("forked", prompt(40, seed=4), 4, forks=forks))
    lone.run()
    lone.post(submit("after", prompt(40, seed=5), 4, targets=m.Targets(NOW)))
    lone.run()
    assert len(lone.tokens("after")) == 4, "no fork is left that anybody waits for"


def test_a_nodes_own_target_is_of_those_who_name_none(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(admission, "_WINDOW_SECONDS", 1e-9)
    config = engine_config(tmp_path, max_batch=1, ttft_target=NOW)
    lone = Lone(config, Role.FUSED, tiny_parts())
    lone.ask("before", prompt(40), 2)
    lone.post(submit("runs", prompt(40), 4))
    lone.post(submit("late", prompt(40), 4))
    lone.post(submit("patient", prompt(40), 4, targets=m.Targets(1e9)))
    lone.run()
    assert lone.rejected("late").kind is m.ErrorKind.OVERLOADED
    assert len(lone.tokens("patient")) == 4
