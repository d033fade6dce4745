"""Tests of a loop on its own thread: its calls, its end and its errors. A lost loop is always
reported."""

import asyncio
import threading
from collections.abc import Iterator

import pytest

from tasuki.utils.loops import LoopLost, LoopThread, run_on
from tests.harness.waiting import HANG_SECONDS


def unexpected(reason: str) -> None:
    raise AssertionError(reason)


async def thread_of() -> int:
    return threading.get_ident()


async def for_ever(begun: threading.Event, cleaned: list[str]) -> None:
    begun.set()
    try:
        await asyncio.sleep(3600)
    finally:
        cleaned.append("cleaned")


def break_it() -> None:
    """Raise an exception fatal to a loop."""
    raise SystemExit("by the test")


@pytest.fixture
def there() -> Iterator[LoopThread]:
    """Yield a running loop. The test may stop it before its end."""
    running = LoopThread("there", unexpected)
    running.start()
    yield running
    running.stop(HANG_SECONDS)
    running.close()


async def test_it_answers_on_its_own_thread_and_its_errors_come_back(there: LoopThread) -> None:
    async def fails() -> None:
        raise ValueError("there")

    assert await there.run(thread_of(), HANG_SECONDS) != threading.get_ident()
    with pytest.raises(ValueError, match="there"):
        await there.run(fails(), HANG_SECONDS)


async def test_what_takes_too_long_is_cancelled_there(there: LoopThread) -> None:
    begun, cleaned = threading.Event(), list[str]()

    # A call never begins if its time is over before its thread reaches it.
    while not begun.is_set():
        with pytest.raises(TimeoutError):
            await there.run(for_ever(begun, cleaned), 0.05)
        # A later call finds it ended.
        await there.run(thread_of(), HANG_SECONDS)
    assert cleaned == ["cleaned"]


def test_stop_cancels_what_still_runs_and_lets_it_clean_up(there: LoopThread) -> None:
    begun, cleaned = threading.Event(), list[str]()
    asyncio.run_coroutine_threadsafe(for_ever(begun, cleaned), there.loop)
    assert begun.wait(HANG_SECONDS)
    there.stop(HANG_SECONDS)
    assert cleaned == ["cleaned"]


def test_one_that_was_never_started_stops_too() -> None:
    never = LoopThread("never", unexpected)
    never.stop(HANG_SECONDS)
    never.close()


async def test_a_loop_that_dies_says_so_to_its_owner_and_to_all_who_wait() -> None:
    told = list[str]()
    begun = threading.Event()
    there = LoopThread("there", told.append)
    there.start()

    waiting = asyncio.create_task(there.run(for_ever(begun, []), HANG_SECONDS))
    await asyncio.to_thread(begun.wait, HANG_SECONDS)
    there.loop.call_soon_threadsafe(break_it)
    with pytest.raises(LoopLost, match="by the test"):
        await waiting
    with pytest.raises(LoopLost, match="restart this node"):
        await there.run(thread_of(), HANG_SECONDS)
    # A later post does no harm.
    there.loop.call_soon_threadsafe(break_it)
    there.stop(HANG_SECONDS)
    assert len(told) == 1
    there.close()


def test_a_stop_that_hangs_is_bounded(there: LoopThread) -> None:
    go_on = threading.Event()
    there.loop.call_soon_threadsafe(go_on.wait, HANG_SECONDS)
    there.stop(0.1)
    assert there.loop.is_running()
    go_on.set()
    there.stop(HANG_SECONDS)
    assert not there.loop.is_running()


async def test_a_crossing_that_is_cancelled_here_is_cancelled_there(there: LoopThread) -> None:
    begun, cleaned = threading.Event(), list[str]()

    crossing = asyncio.create_task(run_on(there.loop, for_ever(begun, cleaned)))
    await asyncio.to_thread(begun.wait, HANG_SECONDS)
    crossing.cancel()
    await asyncio.wait({crossing})
    await there.run(thread_of(), HANG_SECONDS)
    assert cleaned == ["cleaned"]
