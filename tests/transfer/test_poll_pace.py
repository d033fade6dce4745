"""The rate of polling a transport: at once while bytes move, seldom otherwise."""

from tasuki.transfer.transports.base import PollBackoff
from tests.harness.waiting import ManualClock

MOST = 0.0005


def test_waits_double_up_to_the_most_while_nothing_moves() -> None:
    pace = PollBackoff(ManualClock())
    waits = []
    for _ in range(6):
        pace.begin()
        waits.append(pace.wait_seconds(MOST))
    assert waits == sorted(waits)
    assert 0 < waits[0] <= MOST / 8 and waits[-1] == waits[-2] == MOST


def test_bytes_that_move_and_news_end_the_waiting() -> None:
    clock = ManualClock()
    pace = PollBackoff(clock)
    first = pace.wait_seconds(MOST)
    pace.begin()
    assert pace.wait_seconds(MOST) > first
    pace.begin()
    clock.now += 0.001
    assert pace.wait_seconds(MOST) == 0.0
    pace.begin()
    assert pace.wait_seconds(MOST) == first
    pace.begin()
    pace.reset()
    assert pace.wait_seconds(MOST) == first


def test_a_transport_that_is_worth_asking_sooner_is_asked_sooner() -> None:
    pace = PollBackoff(ManualClock())
    for _ in range(3):
        pace.begin()
        assert pace.wait_seconds(0.00001) == 0.00001


def test_many_calls_without_bytes_are_no_movement() -> None:
    clock = ManualClock()
    pace = PollBackoff(clock)
    clock.now += 0.0001
    assert pace.wait_seconds(MOST, calls=8) > 0
    pace.begin()
    clock.now += 0.0001
    assert pace.wait_seconds(MOST, calls=1) == 0
