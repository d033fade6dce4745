"""The counts of what requests hold: bounds in all and by key, and what is given back."""

import random
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest

from tasuki.server.auth.callers import OWNER, Caller
from tasuki.server.auth.limits import HeldBytes
from tasuki.server.errors import Busy, InvalidRequest

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
