"""Memory is given back to the system, at the cost of a small part of the time."""

from collections.abc import Callable

from tasuki.utils.free_memory import FreeMemory
from tests.harness.manual_clock import ManualClock


def test_it_rests_a_hundred_times_as_long_as_it_took() -> None:
    clock = ManualClock()
    trims: list[float] = []

    def trim(pad: int) -> int:
        trims.append(clock())
        clock.now += 0.05
        return 1

    memory = FreeMemory(trim, clock)
    for _ in range(100):
        memory.give_back()
        clock.now += 0.1
    assert len(trims) == 2 and trims[1] - trims[0] >= 5.0


def test_what_one_thread_does_another_does_not_wait_for() -> None:
    trims: list[int] = []

    def trim(pad: int) -> int:
        memory.give_back()
        trims.append(pad)
        return 1

    memory = FreeMemory(trim)
    memory.give_back()
    assert trims == [0]


def test_give_back_later_while_it_rests_trims_once_the_rest_is_over() -> None:
    clock = ManualClock()
    trims: list[float] = []
    due: list[tuple[float, Callable[[], None]]] = []

    def trim(pad: int) -> int:
        trims.append(clock())
        clock.now += 0.05
        return 1

    memory = FreeMemory(trim, clock, lambda seconds, call: due.append((seconds, call)))
    memory.give_back()
    for _ in range(3):
        memory.give_back_later()
    ((seconds, call),) = due
    clock.now += seconds
    call()
    assert len(trims) == 2 and trims[1] - trims[0] >= 5.0
    memory.give_back_later()
    assert len(due) == 2


def test_the_system_has_such_a_call() -> None:
    FreeMemory().give_back()
