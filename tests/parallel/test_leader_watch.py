"""A rank detects a frozen leader by the unread bytes in the socket between them."""

import os
import socket
from collections.abc import Iterator

import pytest

from tasuki.engine.parallel.follower import LeaderWatch
from tasuki.engine.parallel.messages import START_SECONDS
from tests.harness.waiting import ManualClock

TIMEOUT = 10.0


class Pair:
    """A leader and a follower. leader: the end that reads, or does not."""

    def __init__(self) -> None:
        self.leader, self.follower = socket.socketpair()
        self.clock = ManualClock()
        self.watch = LeaderWatch(self.follower, TIMEOUT, self.clock)

    def lost_after(self, periods: int) -> tuple[int, float] | None:
        """Return the period of the loss, up to `periods`, and the seconds without progress; None
        without a loss."""
        for period in range(periods):
            self.clock.now += self.watch.period
            silent = self.watch.lost()
            if silent is not None:
                return period + 1, silent
            self.follower.send(b"beat")
        return None


@pytest.fixture
def pair() -> Iterator[Pair]:
    found = Pair()
    with found.leader, found.follower:
        yield found
    found.watch.close()


def test_one_that_reads_nothing_is_lost_behind_the_timeout(pair: Pair) -> None:
    pair.watch.plans_may_come()
    assert pair.watch.pid == os.getpid()
    # The first period had nothing to read.
    assert pair.lost_after(50) == (11, TIMEOUT)


def test_one_that_reads_is_not(pair: Pair) -> None:
    pair.watch.plans_may_come()
    for _ in range(8):
        assert pair.lost_after(8) is None
        pair.leader.recv(1 << 16)


def test_one_that_loads_has_longer(pair: Pair) -> None:
    periods = round(START_SECONDS / pair.watch.period)
    assert pair.lost_after(2 * periods) == (periods + 1, START_SECONDS)


def test_a_gap_of_this_rank_is_not_the_leaders_silence(pair: Pair) -> None:
    pair.watch.plans_may_come()
    pair.follower.send(b"beat")
    pair.clock.now += 50 * TIMEOUT
    assert pair.watch.lost() is None
    assert pair.lost_after(50) == (10, TIMEOUT)
