"""Tests of work on shared threads: in turns, within bounds, and none for a caller who left."""

import asyncio
import threading
from collections.abc import Iterator

import pytest

from tasuki.server.errors import Busy
from tasuki.server.text.text_codec import WorkThreads
from tests.harness.waiting import HANG_SECONDS


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    """Yield a gate; it opens at the test's end at the latest."""
    event = threading.Event()
    yield event
    event.set()


async def _begun(
    threads: WorkThreads, line: str, gate: threading.Event, size: int = 0
) -> asyncio.Task[bool]:
    """Start work that waits at the gate; return its task once it runs on its thread."""
    began = threading.Event()

    def work() -> bool:
        began.set()
        return gate.wait(HANG_SECONDS)

    task = asyncio.create_task(threads.run(line, work, size))
    assert await asyncio.to_thread(began.wait, HANG_SECONDS)
    return task


async def _asked(
    threads: WorkThreads, line: str, name: str, done: list[str], size: int = 0
) -> asyncio.Task[None]:
    task = asyncio.create_task(threads.run(line, lambda: done.append(name), size))
    await asyncio.sleep(0)
    return task


async def test_a_caller_s_slow_work_keeps_no_other_waiting(gate: threading.Event) -> None:
    threads = WorkThreads()
    slow = [await _begun(threads, "ann", gate) for _ in range(2)]
    done: list[str] = []
    more = [await _asked(threads, "ann", "ann", done) for _ in range(20)]
    async with asyncio.timeout(HANG_SECONDS):
        assert await threads.run("bob", lambda: "bob") == "bob"
    assert not done
    gate.set()
    assert all(await asyncio.gather(*slow))
    await asyncio.gather(*more)
    assert len(done) == 20


async def test_two_callers_leave_a_thread_for_a_third(gate: threading.Event) -> None:
    """Let two callers have more work than threads; none of it begins on the last free thread."""

    threads = WorkThreads()
    slow = [await _begun(threads, line, gate) for line in ("ann", "bob", "ann")]
    done: list[str] = []
    more = [await _asked(threads, line, line, done) for line in ("bob", "ann") * 5]
    async with asyncio.timeout(HANG_SECONDS):
        assert await threads.run("cat", lambda: "cat") == "cat"
    assert not done
    gate.set()
    assert all(await asyncio.gather(*slow))
    await asyncio.gather(*more)
    assert len(done) == 10


LARGE = 1 << 20


async def test_large_work_runs_alone_and_keeps_no_other_work_waiting(gate: threading.Event) -> None:
    """Run large work alone. Three threads that read large bodies at once take three of four turns
    of the interpreter."""

    threads = WorkThreads()
    first = await _begun(threads, "ann", gate, LARGE)
    done: list[str] = []
    large = [
        await _asked(threads, name[:3], name, done, LARGE)
        for name in ("ann 1", "ann 2", "bob 1", "cid 1")
    ]
    async with asyncio.timeout(HANG_SECONDS):
        assert await threads.run("ann", lambda: "small") == "small"
    assert not done
    gate.set()
    await asyncio.gather(first, *large)
    assert done == ["ann 1", "bob 1", "cid 1", "ann 2"]


async def test_callers_take_turns(gate: threading.Event) -> None:
    threads = WorkThreads(threads=1)
    first = await _begun(threads, "ann", gate)
    done: list[str] = []
    asked = [
        await _asked(threads, name[:3], name, done)
        for name in ("ann 1", "ann 2", "ann 3", "bob 1", "cid 1", "bob 2")
    ]
    gate.set()
    await asyncio.gather(first, *asked)
    assert done == ["ann 1", "bob 1", "cid 1", "ann 2", "bob 2", "ann 3"]


async def test_where_all_places_are_taken_the_longest_line_gives_way(gate: threading.Event) -> None:
    threads = WorkThreads(threads=1, waiting=4)
    first = await _begun(threads, "ann", gate)
    done: list[str] = []
    asked = [await _asked(threads, "ann", f"ann {number}", done) for number in (1, 2, 3)]
    with pytest.raises(Busy, match="4 prompts wait"):
        await threads.run("ann", lambda: None)
    bob = [await _asked(threads, "bob", f"bob {number}", done) for number in (1, 2)]
    with pytest.raises(Busy):
        await threads.run("bob", lambda: None)
    gate.set()
    ends = await asyncio.gather(first, *asked, *bob, return_exceptions=True)
    assert [isinstance(end, Busy) for end in ends] == [False, False, True, True, False, False]
    assert done == ["ann 1", "bob 1", "bob 2"]


async def test_work_whose_caller_left_takes_no_place_and_is_never_begun(
    gate: threading.Event,
) -> None:
    threads = WorkThreads(threads=1, waiting=2)
    first = await _begun(threads, "ann", gate)
    done: list[str] = []
    for _ in range(5):
        (await _asked(threads, "ann", "left", done)).cancel()
        await asyncio.sleep(0)
    last = await _asked(threads, "ann", "last", done)
    gate.set()
    await asyncio.gather(first, last)
    assert done == ["last"]


async def test_what_work_raises_is_raised_where_it_was_asked() -> None:
    with pytest.raises(ZeroDivisionError):
        await WorkThreads().run("ann", lambda: 1 // 0)
