"""Memory is given back to the system, at the cost of a small part of the time."""

from collections.abc import Callable

from tasuki.server.auth.callers import OWNER
from tasuki.server.auth.limits import HeldBytes
from tasuki.utils.system import FreeMemory
from tests.harness.waiting import ManualClock

TRIM_SECONDS = 0.05


class Trims:
    """A heap with trims of 50 ms on a manual clock, and its due calls."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.began: list[float] = []
        self.due: list[tuple[float, Callable[[], None]]] = []
        self.memory = FreeMemory(
            self._trim, self.clock, lambda seconds, call: self.due.append((seconds, call))
        )

    def _trim(self, pad: int) -> int:
        self.began.append(self.clock())
        self.clock.now += TRIM_SECONDS
        return 1

    def run_next(self) -> None:
        """Wait for the call that is due first, and make it."""
        seconds, call = self.due.pop(0)
        self.clock.now += seconds
        call()

    def run_all(self) -> None:
        while self.due:
            self.run_next()


def test_memory_freed_within_a_second_after_it_was_asked_is_given_back() -> None:
    trims = Trims()
    asked = trims.clock()
    trims.memory.give_back_later()
    trims.run_all()
    assert len(trims.began) == 1 and trims.began[0] >= asked + 1.0


def test_each_ask_is_followed_by_a_trim_a_second_later_or_more() -> None:
    trims = Trims()
    trims.memory.give_back_later()
    trims.clock.now += 0.9
    asked = trims.clock()
    for _ in range(3):
        trims.memory.give_back_later()
    assert len(trims.due) == 1
    trims.run_all()
    assert len(trims.began) == 2 and trims.began[-1] >= asked + 1.0


def test_ask_while_memory_is_given_back_is_followed_by_a_trim() -> None:
    trims = Trims()
    due: list[Callable[[], None]] = []

    def trim(pad: int) -> int:
        if not trims.began:
            memory.give_back_later()
        trims.began.append(trims.clock())
        return 1

    memory = FreeMemory(trim, trims.clock, lambda seconds, call: due.append(call))
    memory.give_back_later()
    due.pop()()
    due.pop()()
    assert len(trims.began) == 2 and not due


def test_it_rests_a_hundred_times_as_long_as_it_took() -> None:
    trims = Trims()
    for _ in range(20):
        trims.memory.give_back_later()
        trims.memory.give_back_later()
        trims.run_next()
    rests = [later - sooner for sooner, later in zip(trims.began, trims.began[1:], strict=False)]
    assert rests and min(rests) >= 100 * TRIM_SECONDS


def test_large_hold_that_ended_has_memory_given_back_and_a_small_one_not() -> None:
    trims = Trims()
    held = HeldBytes(memory=trims.memory)
    with held.hold(OWNER, 1000):
        pass
    assert not trims.due
    with held.hold(OWNER, 2 << 20) as hold:
        hold.resize(10)
        assert not trims.due
    trims.run_all()
    assert len(trims.began) == 1


def test_the_system_has_such_a_call() -> None:
    FreeMemory().give_back()
