"""Event loops: on separate threads, their delay, and the tasks of one owner.

LoopThread: an event loop on a separate thread. Its tasks never wait for other loops' callbacks.
Owns the thread and the loop. Thread rule: start() and stop() once each, from other threads; run()
from any other event loop. Invariants: the death of the loop reaches on_failure and every caller
waiting in run(). The loop stays open until close(), so a message to an ended loop is dropped
without an error.

GuardedTasks: tasks started and ended together by one owner. Owns them from start() to end(). Knows
nothing of their work. Thread rule: the event loop. Invariants: a task's error is reported once, and
never left to the garbage collector. end() returns in bounded time, even if a task ignores its
cancellation.

The module also runs several parts of one call's work together on an event loop.

LoopPulse: the delay of an event loop, measured from another thread. Owns one probe at a time.
Thread rule: behind() belongs to one thread; the probe's answer may come on any.
"""

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from typing import Any, TypeAlias, TypeVar

from tasuki.utils.signatures import Clock, EndNotice, Notice

from .system import name_this_thread

log = logging.getLogger(__name__)

# Time for cancelled tasks to clean up, in seconds.
_LAST_TASKS_SECONDS = 5.0

Result = TypeVar("Result")


class LoopLost(RuntimeError):
    """The event loop of a thread has died and runs nothing any more: restart this node."""


async def run_on(loop: asyncio.AbstractEventLoop, coroutine: Coroutine[Any, Any, Result]) -> Result:
    """Run the coroutine on another event loop and return its result. Cancelling the caller cancels
    the coroutine."""
    return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(coroutine, loop))


class LoopThread:
    def __init__(self, name: str, on_failure: EndNotice) -> None:
        """Set up the thread, not started. on_failure: called once with a reason if the loop dies,
        on the dying thread; not after stop()."""
        self.loop = asyncio.new_event_loop()
        """The event loop of the thread. Callbacks may be given to it before start(); they run after
        it."""
        self._name = name
        self._on_failure = on_failure
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._waited_for: set[Future[Any]] = set()
        self._lost: str | None = None

    def start(self) -> None:
        self._thread.start()

    async def run(self, coroutine: Coroutine[Any, Any, Result], timeout: float | None) -> Result:
        """Run the coroutine in the thread's loop and return its result. Raises LoopLost, also if
        the loop dies meanwhile. Raises TimeoutError after `timeout` seconds; None: the coroutine
        has its own bounds. REQUIRES: started."""
        if self._lost is not None:
            coroutine.close()
            raise LoopLost(self._lost)
        future = asyncio.run_coroutine_threadsafe(coroutine, self.loop)
        self._waited_for.add(future)
        future.add_done_callback(self._waited_for.discard)
        if self._lost is not None:
            # The loop died in between, perhaps before the future was added.
            self._give_up(future, self._lost)
        return await asyncio.wait_for(asyncio.wrap_future(future), timeout)

    async def end(self, coroutine: Coroutine[Any, Any, None], timeout: float) -> None:
        """Run a closing coroutine in the thread's loop, as run() does. If the loop is dead or
        hangs, log it and return."""
        try:
            await self.run(coroutine, timeout)
        except (LoopLost, TimeoutError) as error:
            log.warning("%s did not end in order: %r", self._name, error)

    def stop(self, timeout: float) -> None:
        """Cancel the loop's tasks and end the thread within `timeout` seconds. A hanging thread
        ends with the process. Idempotent."""
        if self._thread.is_alive():
            self.loop.call_soon_threadsafe(self.loop.stop)
            self._thread.join(timeout)
        if self._thread.is_alive():
            log.warning("%s still runs after %s s: it ends with the process", self._name, timeout)

    def close(self) -> None:
        """Close the thread's loop. REQUIRES: stopped, or never started. Do not call it shortly
        before the end of the process: gRPC posts late events to the loop of their call, and logs an
        error if the loop is closed."""
        self.loop.close()

    def _run(self) -> None:
        name_this_thread()
        asyncio.set_event_loop(self.loop)
        try:
            self.loop.run_forever()
            self._end_tasks()
        except BaseException as error:
            log.exception("the event loop %s died", self._name)
            self._lost = f"the event loop {self._name} died: {error!r}; restart this node"
            for future in list(self._waited_for):
                self._give_up(future, self._lost)
            self._on_failure(self._lost)

    def _end_tasks(self) -> None:
        tasks = asyncio.all_tasks(self.loop)
        for task in tasks:
            task.cancel()
        if tasks:
            self.loop.run_until_complete(asyncio.wait(tasks, timeout=_LAST_TASKS_SECONDS))
        self.loop.run_until_complete(self.loop.shutdown_asyncgens())

    @staticmethod
    def _give_up(future: "Future[Any]", reason: str) -> None:
        with suppress(InvalidStateError):
            future.set_exception(LoopLost(reason))


_END_SECONDS = 2.0
"""Seconds to wait for a cancelled task. It ends within a turn of the loop, unless a library holds
it."""


Task: TypeAlias = Callable[[], Coroutine[Any, Any, None]]
"""A function making a task's coroutine. It is not called for a task cancelled before its start."""


class GuardedTasks:
    def __init__(self, name: str, broke: Callable[[Exception], None]) -> None:
        """Set up an empty group of tasks. broke: called with the exception of a task; not called
        for a cancelled task."""
        self._name = name
        self._broke = broke
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, work: Task) -> None:
        task = asyncio.get_running_loop().create_task(self._guarded(work), name=self._name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _guarded(self, work: Task) -> None:
        try:
            await work()
        except Exception as error:
            log.exception("%s: a task broke", self._name)
            self._broke(error)

    async def end(self) -> None:
        """Cancel the group's running tasks and wait for their end, at most _END_SECONDS. Log the
        tasks still running then."""
        tasks = set(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            _, late = await asyncio.wait(tasks, timeout=_END_SECONDS)
            for task in late:
                log.error("%s: a task ignores its cancellation: %s", self._name, task)


async def together(works: Sequence[Coroutine[Any, Any, None]]) -> None:
    """Run all works simultaneously and wait for them. The first exception cancels the others and is
    raised. All have ended when the call returns."""
    if len(works) == 1:
        await works[0]
        return
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class LoopPulse:
    def __init__(
        self,
        probe: Callable[[Notice], object],
        clock: Clock = time.monotonic,
    ) -> None:
        """Set up the measurement of a loop's delay. probe: posts a function to the loop, without
        waiting for it."""
        self._probe = probe
        self._clock = clock
        self._asked: float | None = None
        """Time the probe was posted, if the loop has not run it yet; else None."""

    def behind(self) -> float:
        """Return the delay of the loop: the seconds the posted probe has waited so far. If the loop
        has run it, return 0.0 and post the next probe."""
        asked = self._asked
        if asked is not None:
            return self._clock() - asked
        self._asked = self._clock()
        self._probe(self._answer)
        return 0.0

    def _answer(self) -> None:
        self._asked = None
