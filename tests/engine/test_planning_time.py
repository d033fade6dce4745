"""When the next forward is planned: late in the one in flight, and early enough for the device."""

import time
from types import SimpleNamespace
from typing import Any

import pytest

from tasuki.bench.load.free.runner import FreeForward
from tasuki.engine import messages as m
from tasuki.engine.forward_stream import PlanningTime
from tasuki.engine.runner.base import SampledTokens
from tasuki.engine.thread import EngineThread
from tests.harness.waiting import ManualClock, until


class Forward(SimpleNamespace):
    def __len__(self) -> int:
        return int(self.rows)


def forward(rows: int, prompt_tokens: int = 0) -> Any:
    return Forward(rows=rows, prompt_tokens=prompt_tokens)


class Device:
    """Runs one forward after the other on a manual clock, and knows how long it had none."""

    def __init__(self, planning: float) -> None:
        self.clock = ManualClock()
        self.times = PlanningTime(self.clock)
        self._planning = planning
        self._flying: tuple[Any, float, float, bool] | None = None
        self._ends = 0.0

    def step(self, of: Any, seconds: float) -> tuple[float, float]:
        """Wait, plan and launch `of`, and complete the one before. Return the wait and the idle
        time of the device."""
        waited = self.times.wait
        self.clock.now += waited + self._planning
        idle = max(0.0, self.clock.now - self._ends) if self._flying else 0.0
        self._ends = max(self.clock.now, self._ends) + seconds
        before, self._flying = self._flying, (of, seconds, idle, waited > 0)
        ends = self._ends - seconds
        self.times.launched(of, self._planning)
        if before is not None:
            self.clock.now = max(self.clock.now, ends)
            completed, busy, idled, late = before
            self.times.completed(completed, busy, idled, late=late)
        return waited, idle


def test_a_plan_begins_late_in_a_forward_whose_time_is_known() -> None:
    device = Device(planning=0.001)
    waits = [device.step(forward(16), 0.010) for _ in range(300)]
    assert waits[0][0] == waits[2][0] == 0.0
    late = [waited for waited, _ in waits[20:]]
    assert min(late) > 0.007, "a newcomer has most of the forward to come in"
    assert sum(idle for _, idle in waits[5:]) == 0.0


def test_a_size_that_was_never_measured_is_not_waited_for() -> None:
    device = Device(planning=0.001)
    for _ in range(20):
        device.step(forward(16), 0.010)
    device.step(forward(16, prompt_tokens=500), 0.050)
    assert device.step(forward(16), 0.010)[0] == 0.0


def test_the_shortest_of_the_latest_counts() -> None:
    device = Device(planning=0.0)
    for number in range(40):
        device.step(forward(16), 0.004 if number % 4 == 0 else 0.010)
    assert all(device.step(forward(16), 0.010)[0] < 0.004 for _ in range(4))


def test_a_device_that_ran_dry_is_given_work_earlier() -> None:
    """Its launches take 3 ms more than the loop sees of them."""
    device = Device(planning=0.0)
    for _ in range(10):
        device.step(forward(16), 0.010)
    before = device.times.wait
    for _ in range(20):
        device.times.completed(forward(16), 0.010, 0.003, late=True)
        device.times.launched(forward(16), 0.0)
    assert device.times.wait == 0.0 < before
    for _ in range(6000):
        device.times.completed(forward(16), 0.010, 0.0, late=False)
    device.times.launched(forward(16), 0.0)
    assert device.times.wait > 0.009, "it is tried again"


@pytest.mark.parametrize("idle", [0.0, 0.00009])
def test_what_copies_cost_between_forwards_moves_no_plan(idle: float) -> None:
    device = Device(planning=0.0)
    for _ in range(10):
        device.step(forward(16), 0.010)
    before = device.times.wait
    device.times.completed(forward(16), 0.010, idle, late=True)
    device.times.launched(forward(16), 0.0)
    assert device.times.wait >= before


class Busy:
    """An engine with forwards of `seconds`. It records the time of each message."""

    idle_seconds: float | None = 0.0

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._due: float | None = None
        self.steps: list[float] = []
        self.handled: list[float] = []
        self.gathered = 0

    @property
    def planning_wait(self) -> float:
        return 0.0 if self._due is None else max(0.0, min(0.002, self._due - time.monotonic()))

    def gather(self) -> None:
        self.gathered += 1

    def prepare(self) -> None: ...

    def close(self) -> None: ...

    def handle(self, message: m.Inbox) -> None:
        self.handled.append(time.monotonic())

    def step(self) -> bool:
        self.steps.append(time.monotonic())
        self._due = time.monotonic() + self._seconds
        return True

    def take_outbox(self) -> list[m.Outbox]:
        return []


def test_messages_that_come_in_a_forward_are_handled_before_the_next_plan() -> None:
    engine = Busy(3600.0)
    thread = EngineThread(engine, lambda said: None, lambda reason: None)  # type: ignore[arg-type]
    thread.start()
    until(lambda: bool(engine.steps), "a first step")
    thread.post(m.FlushCache(1))
    until(lambda: bool(engine.handled), "the message handled")
    thread.stop()
    assert len(engine.steps) <= 2, "the wait does not keep a loop that ends"
    assert all(at > engine.handled[0] for at in engine.steps[1:])
    assert engine.gathered


def test_the_free_device_knows_when_a_forward_has_ended() -> None:
    now = time.monotonic()
    assert FreeForward(SampledTokens.nothing(0), 0.0, 0.0, now).has_ended
    assert not FreeForward(SampledTokens.nothing(0), 0.0, 0.0, now + 60).has_ended
