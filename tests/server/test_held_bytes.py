"""Tests of bytes held by requests, counted by key and in total, and of memory returned to the
system."""

import random
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import pytest

from tasuki.server.auth.callers import OWNER, Caller
from tasuki.server.auth.limits import HeldBytes
from tasuki.server.errors import Busy, InvalidRequest
from tasuki.utils.system import FreeMemory
from tests.harness.waiting import ManualClock

ANN, BOB, CAT = (Caller(name) for name in ("ann", "bob", "cat"))
MOST = 1000


def test_hold_of_one_key_of_several_ends_at_half_of_the_bound() -> None:
    held = HeldBytes(MOST)
    with held.hold(ANN, 400):
        with pytest.raises(Busy, match="ann"), held.hold(ANN, 101):
            pass
        with held.hold(ANN, 100), held.hold(BOB, 500):
            assert (held.of(ANN), held.of(BOB), held.total) == (500, 500, MOST)
    assert (held.of(ANN), held.of(BOB), held.total) == (0, 0, 0)


def test_hold_of_the_only_key_may_have_the_whole_bound() -> None:
    held = HeldBytes(MOST)
    with held.hold(OWNER, MOST):
        assert held.of(OWNER) == MOST


def test_hold_beyond_the_bound_of_all_is_refused_as_busy() -> None:
    held = HeldBytes(MOST)
    with held.hold(ANN, 500), held.hold(BOB, 400):
        with pytest.raises(Busy, match="this node"), held.hold(CAT, 101):
            pass
        with held.hold(CAT, 100):
            pass


def test_hold_that_never_fits_is_refused_as_invalid() -> None:
    held = HeldBytes(MOST)
    with pytest.raises(InvalidRequest, match="send less"), held.hold(ANN, 501):
        pass
    with held.hold(ANN, 300) as hold, pytest.raises(InvalidRequest):
        hold.resize(501)
    assert held.total == 0


def test_refused_resize_leaves_the_size_as_it_was() -> None:
    held = HeldBytes(MOST)
    with held.hold(ANN, 300) as first, held.hold(ANN, 100) as second:
        with pytest.raises(Busy):
            first.grow(101)
        assert (first.size, held.of(ANN)) == (300, 400)
        with pytest.raises(Busy):
            second.check(201)
        second.check(200)
        assert second.size == 100
        first.resize(10)
        second.resize(490)
        assert held.of(ANN) == 500
    assert held.total == 0


@pytest.mark.parametrize("seed", range(5))
def test_counts_equal_the_holds_after_any_calls(seed: int) -> None:
    drawn = random.Random(seed)
    held = HeldBytes(MOST)
    callers = (ANN, BOB, CAT, OWNER)

    @contextmanager
    def one(caller: Caller, size: int) -> Iterator[None]:
        with held.hold(caller, size) as hold:
            open_holds.append((caller, hold))
            try:
                yield
            finally:
                open_holds.remove((caller, hold))

    open_holds: list[tuple[Caller, object]] = []
    for _ in range(20):
        with ExitStack() as stack:
            for _ in range(30):
                try:
                    if open_holds and drawn.random() < 0.5:
                        _, hold = drawn.choice(open_holds)
                        hold.resize(drawn.randrange(400))  # type: ignore[attr-defined]
                    else:
                        stack.enter_context(one(drawn.choice(callers), drawn.randrange(400)))
                except (Busy, InvalidRequest):
                    pass
                sizes = [(caller, hold.size) for caller, hold in open_holds]  # type: ignore[attr-defined]
                assert held.total == sum(size for _, size in sizes) <= MOST
                for caller in callers:
                    assert held.of(caller) == sum(size for of, size in sizes if of == caller)
                    assert caller is OWNER or held.of(caller) <= MOST // 2
        assert held.total == 0


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
        """Advance the clock to the first call due, and make it."""
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
