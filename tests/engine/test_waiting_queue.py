"""The next request to begin: of callers the one that holds least, of its requests the most
urgent."""

import math
from typing import cast

import numpy as np
import pytest

from tasuki.engine import messages as m
from tasuki.engine.request import Request
from tasuki.engine.scheduling.queues import WaitingQueue
from tasuki.engine.scheduling.shared_prompts import Leader
from tasuki.model.ops.sampling.params import SamplingParams
from tasuki.pycache._cpp_cache import Allocation
from tests.harness.engines import Lone, prompt, submit, tiny_engine


def request(name: str, *, priority: int = 0, due: float = math.inf, caller: str = "") -> Request:
    tokens = np.ones(3, dtype=np.int32)
    made = Request(m.RequestId(name), tokens, SamplingParams(), caller=caller, priority=priority)
    made.due = due
    return made


def candidates(queue: WaitingQueue, caller: str = "") -> list[Request]:
    return [place[-1] for place in queue.lines[caller][: queue.tried(caller)]]


def test_a_line_has_the_returned_then_the_due_then_the_first_in_each_priority() -> None:
    queue = WaitingQueue()
    queue.add(request("first", due=9))
    queue.add(request("second", due=9))
    queue.add(request("due", due=5))
    queue.add(request("urgent", priority=-1))
    queue.add(request("later", priority=1, due=1))
    queue.add(request("returned", due=20), returned=True)
    order = ["urgent", "returned", "due", "first", "second", "later"]
    assert [waiting.id for waiting in queue] == order
    for name in order:
        head = candidates(queue)[0]
        assert head.id == name
        queue.begun(head)
    assert not len(queue) and not queue.lines


def test_others_go_past_a_request_without_room_so_often_and_no_more() -> None:
    queue = WaitingQueue()
    large = request("large")
    queue.add(large)
    for number in range(100):
        queue.add(request(f"small {number}"))
    passed = 0
    while len(tried := candidates(queue)) > 1:
        queue.begun(tried[1])
        passed += 1
    assert tried == [large] and passed == 16
    queue.begun(large)
    assert len(candidates(queue)) > 1


def test_who_is_begun_in_its_turn_goes_past_nobody() -> None:
    queue = WaitingQueue()
    for name in ("one", "other"):
        queue.add(request(name))
    for number in range(20):
        urgent = request(f"urgent {number}", priority=-1)
        queue.add(urgent)
        queue.begun(urgent)
    assert len(candidates(queue)) == 2


def test_who_leaves_is_nowhere() -> None:
    queue = WaitingQueue()
    one, other = request("one"), request("other", caller="b")
    queue.add(one)
    queue.add(other)
    queue.discard(one)
    assert one not in queue and list(queue) == [other] and list(queue.lines) == ["b"]
    queue.discard(one)
    assert len(queue) == 1


def started(engine: Lone) -> list[str]:
    """Return requests in the order of their first tokens."""
    return [token.request_id for token in engine.all_said(m.TokenOut) if token.index == 0]


def ask(engine: Lone, name: str, length: int = 70, tokens: int = 2, **changes: object) -> None:
    engine.post(
        submit(name, prompt(length, seed=len(engine.said) + sum(map(ord, name))), tokens, **changes)
    )


def test_a_caller_with_one_request_is_not_behind_another_ones_hundred() -> None:
    engine = tiny_engine(max_batch=2)
    for number in range(30):
        ask(engine, f"greedy {number}", caller="greedy")
    engine.step()
    ask(engine, "modest", caller="modest")
    engine.run()
    assert started(engine).index("modest") <= 4
    assert len(started(engine)) == 31
    engine.assert_at_rest()


@pytest.mark.parametrize("length", [20, 300])
def test_a_caller_who_holds_every_row_gives_way_to_another(length: int) -> None:
    engine = tiny_engine(max_batch=4)
    for number in range(6):
        ask(engine, f"endless {number}", tokens=400, caller="greedy")
    engine.steps(20)
    ask(engine, "modest", length, caller="modest")
    engine.steps(40)
    assert engine.finished("modest").usage.completion_tokens == 2
    engine.run()
    for number in range(6):
        assert len(engine.tokens(f"endless {number}")) == 400
    engine.assert_at_rest()


def test_a_request_that_is_just_an_equal_part_is_made_room_for() -> None:
    engine = tiny_engine(max_batch=2)
    for number in range(2):
        ask(engine, f"endless {number}", tokens=100, caller="greedy")
    engine.steps(20)
    ask(engine, "modest", caller="modest")
    engine.steps(20)
    assert engine.finished("modest").usage.completion_tokens == 2
    engine.run()
    engine.assert_at_rest()


def test_the_lowest_priority_number_is_begun_first_and_gives_way_last() -> None:
    engine = tiny_engine(max_batch=1)
    ask(engine, "runs", tokens=8)
    engine.step()
    for name, priority in (("last", 5), ("usual", 0), ("first", -3)):
        ask(engine, name, priority=priority)
    engine.run()
    assert started(engine) == ["runs", "first", "usual", "last"]

    engine = tiny_engine(slabs=10)
    transfer_id = engine.engine.max_request_tokens
    answer = transfer_id * 2 // 3 - 64
    ask(engine, "old and idle", 64, answer, priority=1)
    ask(engine, "young and urgent", 64, answer, priority=0)
    engine.run(steps=6 * answer)
    assert m.RequestPhase.RETRACTED in engine.phases("old and idle")
    assert m.RequestPhase.RETRACTED not in engine.phases("young and urgent")
    engine.assert_at_rest()


def test_a_priority_takes_nothing_from_another_caller() -> None:
    """Memory runs short as answers grow. The retracted request is the same whatever priority a
    caller gives its requests."""

    def who_gives_way(priority: int) -> list[str]:
        engine = tiny_engine(slabs=12)
        names = ["modest", "greedy 0", "greedy 1", "greedy 2"]
        for name in names:
            caller = name.split()[0]
            urgency = priority if caller == "greedy" else 0
            ask(engine, name, 64, 250, caller=caller, priority=urgency)
        engine.run(steps=5000)
        assert all(len(engine.tokens(name)) == 250 for name in names)
        engine.assert_at_rest()
        return [name for name in names if m.RequestPhase.RETRACTED in engine.phases(name)]

    assert who_gives_way(-(2**31)) == who_gives_way(0)


def test_whose_client_waits_least_is_begun_first() -> None:
    engine = tiny_engine(max_batch=1)
    ask(engine, "runs", tokens=8)
    engine.step()
    ask(engine, "patient")
    ask(engine, "hurried", patience=30.0)
    engine.run()
    assert started(engine) == ["runs", "hurried", "patient"]


def test_what_its_client_no_longer_waits_for_is_not_begun() -> None:
    engine = tiny_engine(max_batch=1)
    ask(engine, "runs", tokens=300)
    engine.step()
    ask(engine, "late", patience=0.0)
    engine.run()
    assert engine.rejected("late").kind is m.ErrorKind.QUEUE_TIMEOUT
    assert len(engine.tokens("runs")) == 300
    engine.assert_at_rest()


def test_a_large_prompt_without_room_stops_nobody_behind_it() -> None:
    engine = tiny_engine(slabs=10)
    transfer_id = engine.engine.max_request_tokens
    ask(engine, "runs", transfer_id // 2, transfer_id // 3)
    engine.steps(3)
    ask(engine, "large", transfer_id - 70, 4)
    ask(engine, "small", 20, 4)
    for _ in range(60):
        engine.step()
    assert engine.finished("small").usage.completion_tokens == 4
    assert "large" not in started(engine)
    engine.run()
    assert len(engine.tokens("large")) == 4
    engine.assert_at_rest()


def led(runs: Request, position: int) -> Leader:
    """Return a running request as a leader that others wait for."""
    return Leader(runs, cast(Allocation, None), position)


def test_who_waits_behind_a_sibling_may_leave_and_others_go_on_to_wait() -> None:
    queue, runs = WaitingQueue(), request("runs")
    one, other, third = request("one"), request("other"), request("third")
    for waiting in (one, other, third):
        queue.add(waiting)
    queue.park(one, led(runs, 64))
    queue.park(other, led(runs, 128))
    assert list(queue) == [third, one, other]
    queue.discard(other)
    assert list(queue) == [third, one] and queue.stands(third) and not queue.stands(one)
    queue.discard(one)
    queue.discard(third)
    assert not len(queue) and not queue.lines


def test_whose_sibling_is_over_stands_where_it_stood() -> None:
    queue, over = WaitingQueue(), request("over")
    one, other = request("one"), request("other")
    queue.add(one)
    queue.add(other)
    queue.park(one, led(over, 64))
    assert candidates(queue) == [other]
    queue.unpark()
    assert candidates(queue) == [one, other] and queue.stands(one)


def test_what_others_need_of_a_prompt_is_what_is_not_forwarded_yet() -> None:
    queue, runs = WaitingQueue(), request("runs")
    for number, position in enumerate((128, 64)):
        waiting = request(f"waits {number}")
        queue.add(waiting)
        queue.park(waiting, led(runs, position))
    starts = (0, 63, 64, 128)
    assert [queue.sought(runs, start, 640) for start in starts] == [64, 64, 128, 640]
    assert queue.sought(request("another"), 0, 640) == 640


def test_who_missed_its_time_stands_behind_who_can_keep_its_own() -> None:
    queue = WaitingQueue()
    missed, patient, parked = (request(name, due=30.0) for name in ("missed", "patient", "parked"))
    for waiting in (missed, parked):
        waiting.first_due = 5.0
    patient.due = 20.0
    for waiting in (missed, patient, parked):
        queue.add(waiting)
    assert candidates(queue) == [missed, parked, patient]
    queue.park(parked, led(request("runs"), 64))
    queue.missed(parked)
    queue.missed(missed)
    assert list(queue) == [patient, missed, parked], "who is parked stands nowhere else"
    after = request("after", due=30.0)
    queue.add(after)
    assert candidates(queue) == [patient, missed, after], "of equals who came first"
