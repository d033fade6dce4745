"""A peer is lost by its own heartbeat timeout, not by a pause of this node."""

import asyncio
import time

import pytest

from tasuki.transfer.control.writer_life import unless_timed_out
from tasuki.transfer.errors import PeerTimedOut
from tasuki.transfer.lifecycle.heartbeats import LATE_TICKS, HeartbeatTimeout

LIMIT, PERIOD = 1.0, 0.1


def ticked(
    heartbeat_timeout: HeartbeatTimeout, now: float, seconds: float, period: float = PERIOD
) -> float | None:
    """Tick in time for `seconds`. Return the time of the peer's loss, None if there was none."""
    end = now + seconds
    while now < end:
        now += period
        if heartbeat_timeout.tick(now):
            return now
    return None


def test_a_peer_that_is_silent_for_the_limit_is_lost_and_not_before() -> None:
    lost = ticked(HeartbeatTimeout(LIMIT, 50.0, PERIOD), 50.0, 5.0)
    assert lost is not None and 51.0 - 1e-9 <= lost <= 51.0 + PERIOD


def test_a_peer_that_is_heard_in_time_is_never_lost() -> None:
    heartbeat_timeout, now = HeartbeatTimeout(LIMIT, 0.0, PERIOD), 0.0
    for _ in range(50):
        assert ticked(heartbeat_timeout, now, 0.85) is None
        now += 0.95
        heartbeat_timeout.received(now)


def test_a_silence_is_looked_at_ten_times_where_nobody_says_how_often() -> None:
    assert HeartbeatTimeout(5.0, 0.0).period == 0.5


def test_a_gap_of_our_own_is_not_the_peers() -> None:
    heartbeat_timeout = HeartbeatTimeout(LIMIT, 0.0, PERIOD)
    assert ticked(heartbeat_timeout, 0.0, 0.75) is None
    # This node was blocked for five seconds, so it reads the peer's messages only now.
    assert not heartbeat_timeout.tick(5.8)
    assert ticked(heartbeat_timeout, 5.8, 0.15) is None
    heartbeat_timeout.received(6.0)
    assert ticked(heartbeat_timeout, 6.0, 0.85) is None


def test_after_a_gap_a_silent_peer_is_lost_by_what_is_left_of_the_limit() -> None:
    heartbeat_timeout = HeartbeatTimeout(LIMIT, 0.0, PERIOD)
    assert ticked(heartbeat_timeout, 0.0, 0.55) is None
    assert not heartbeat_timeout.tick(5.6)
    lost = ticked(heartbeat_timeout, 5.6, 5.0)
    assert lost is not None and lost - 5.6 <= LIMIT - 0.5 + PERIOD


def test_gaps_do_not_postpone_for_ever() -> None:
    heartbeat_timeout, now, ticks = HeartbeatTimeout(LIMIT, 0.0, PERIOD), 0.0, 1
    while not heartbeat_timeout.tick(now := now + 3.0):
        ticks += 1
        assert ticks <= LATE_TICKS
    assert ticks == LATE_TICKS


def test_a_tick_a_little_late_is_in_time() -> None:
    lost = ticked(HeartbeatTimeout(LIMIT, 0.0, PERIOD), 0.0, 5.0, period=1.9 * PERIOD)
    assert lost is not None and lost <= LIMIT + 2 * PERIOD


async def test_what_never_comes_is_cancelled_and_said() -> None:
    heartbeat_timeout = HeartbeatTimeout(0.2, time.monotonic())
    never = asyncio.get_running_loop().create_future()
    with pytest.raises(PeerTimedOut):
        await unless_timed_out(never, heartbeat_timeout)
    assert never.cancelled()


async def test_what_came_while_this_loop_stood_is_taken() -> None:
    """The answer is like a heartbeat waiting in a socket: the loop needs some rounds to see it."""

    async def some_rounds_later(came: asyncio.Event) -> str:
        await came.wait()
        for _ in range(5):
            await asyncio.sleep(0)
        return "heard"

    loop, came = asyncio.get_running_loop(), asyncio.Event()
    heartbeat_timeout = HeartbeatTimeout(0.5, time.monotonic())
    loop.call_soon(time.sleep, 1.5)
    loop.call_later(0.6, came.set)
    assert await unless_timed_out(some_rounds_later(came), heartbeat_timeout) == "heard"


async def test_an_error_of_what_is_awaited_is_its_own() -> None:
    async def fails() -> None:
        raise ValueError("theirs")

    with pytest.raises(ValueError, match="theirs"):
        await unless_timed_out(fails(), HeartbeatTimeout(1.0, time.monotonic()))
