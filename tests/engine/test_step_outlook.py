"""The expected time of a step: from earlier steps, and never less for more rows."""

import random
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasuki.engine.scheduling.admission import Seats, StepOutlook

STEPS = st.lists(st.tuples(st.integers(1, 300), st.floats(1e-5, 10)), min_size=1, max_size=60)


def settled(seats: Seats, base: float, row: float, waiting: int = 10_000) -> list[int]:
    """Return the rows of each step while `waiting` requests want to run and some leave."""
    draw, rows, seen = random.Random(1), 0, []
    for _ in range(400):
        rows += min(waiting, max(0, seats.count - rows))
        seen.append(rows)
        seats.steps.completed(rows, base + row * rows)
        rows -= draw.random() < 0.3
    return seen


@pytest.mark.parametrize("row", [1e-5, 1e-4, 1e-3])
def test_as_many_have_seats_as_a_step_has_time_for(row: float) -> None:
    limit, base = 0.02, 0.005
    fitting = (limit - base) / row
    seen = settled(Seats(256, limit), base, row)
    assert max(seen) <= min(256, fitting) + 1
    assert min(seen[-100:]) >= min(256, fitting) - 3


def test_without_a_limit_everybody_has_a_seat_and_a_few_more_a_place() -> None:
    assert (Seats(64, None).count, Seats(64, None).places) == (64, 72)
    limited = Seats(64, 0.02)
    assert limited.count == limited.places == 1, "nothing is known yet"


def test_a_limit_that_no_step_keeps_leaves_one_seat() -> None:
    assert set(settled(Seats(64, 1e-9), 0.005, 1e-4)) == {1}


def test_answers_that_grow_long_take_seats_away_and_nobody_s() -> None:
    seats = Seats(256, 0.02)
    assert settled(seats, 0.005, 1e-4)[-1] > 140
    for _ in range(3):
        seats.steps.completed(100, 0.03)
    assert seats.count < 100
    for _ in range(3):
        seats.steps.completed(60, 0.015)
    assert 60 < seats.count < 100


def test_one_slow_step_shows_nothing() -> None:
    steps = StepOutlook()
    for seconds in (0.01, 0.01, 5.0):
        steps.completed(8, seconds)
    assert steps.seconds(8) == 0.01
    steps.completed(8, 5.0)
    assert steps.seconds(8) == 5.0


@given(STEPS)
def test_more_rows_are_never_expected_to_take_less(steps: list[tuple[int, float]]) -> None:
    outlook = StepOutlook()
    assert outlook.seconds(1) is None and outlook.fitting(1.0) == 1
    for rows, seconds in steps:
        outlook.completed(rows, seconds)
    expected = [outlook.seconds(rows) for rows in range(1, 601)]
    assert all(one <= other * (1 + 1e-9) for one, other in pairwise(expected))  # type: ignore[operator]
    last = steps[-1][0]
    shortest = min(seconds for rows, seconds in steps[-2:] if rows == last)
    assert outlook.seconds(last) == pytest.approx(shortest)
    for seconds in (1e-9, 1e-3, 1.0, 100.0):
        fits = outlook.fitting(seconds)
        assert 1 <= fits <= 2 * max(rows for rows, _ in steps)
        assert fits == 1 or outlook.seconds(fits) <= seconds  # type: ignore[operator]
