"""Event loops: on threads of their own, how late they are, and the tasks of one owner.

An event loop on a thread of its own: its tasks never wait for other loops' callbacks.

Owns the thread and the loop. Thread rule: start() and stop() once each, from threads other than its
own; run() from any other event loop. Invariants: the death of the loop reaches on_failure and every
caller that waits in run(); the loop stays open until close(), so that a message to an ended loop is
dropped without an error.

Tasks that one owner starts and ends together.

Owns them from start() to end(). Knows nothing of what they do. Thread rule: the event loop.
Invariants: what a task raises is reported once, never left for the garbage collector to find; end()
returns in bounded time, whatever a task does with its cancellation.

Several pieces of one call's work on an event loop.

How long an event loop is behind, measured from another thread.

Owns one probe at a time. Thread rule: behind() belongs to one thread; the probe's answer may
come on any.
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

# Cancelled tasks get that long to clean up.
_LAST_TASKS_SECONDS = 5.0

Result = TypeVar("Result")


class LoopLost(RuntimeError):
    """The loop has died and runs nothing any more: restart this node."""


async def run_on(loop: asyncio.AbstractEventLoop, coroutine: Coroutine[Any, Any, Result]) -> Result:
    """The coroutine's result, run on `loop`. Cancelling the caller cancels the coroutine."""
    return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(coroutine, loop))


class LoopThread:
    def __init__(self, name: str, on_failure: EndNotice) -> None:
        """on_failure(reason): called on the dying thread, once; not after stop()."""
        self.loop = asyncio.new_event_loop()
        """Callbacks may be given to it at once; they run from start() on."""
        self._name = name
        self._on_failure = on_failure
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._waited_for: set[Future[Any]] = set()
        self._lost: str | None = None

    def start(self) -> None:
        self._thread.start()

    async def run(self, coroutine: Coroutine[Any, Any, Result], timeout: float | None) -> Result:
        """The coroutine's result, run there. Raises LoopLost, also where the loop dies meanwhile,
        and TimeoutError after `timeout` seconds; None: it has bounds of its own. REQUIRES:
        started."""
        if self._lost is not None:
            coroutine.close()
            raise LoopLost(self._lost)
        future = asyncio.run_coroutine_threadsafe(coroutine, self.loop)
        self._waited_for.add(future)
        future.add_done_callback(self._waited_for.discard)
        if self._lost is not None:
            # It died in between, perhaps before the future was added.
            self._give_up(future, self._lost)
        return await asyncio.wait_for(asyncio.wrap_future(future), timeout)

    async def end(self, coroutine: Coroutine[Any, Any, None], timeout: float) -> None:
        """As run(), for the end of something there; a loop that is dead or stands is logged."""
        try:
            await self.run(coroutine, timeout)
        except (LoopLost, TimeoutError) as error:
            log.warning("%s did not end in order: %r", self._name, error)

    def stop(self, timeout: float) -> None:
        """Cancel the loop's tasks and end the thread, within `timeout` seconds; a thread that hangs
        ends with the process. Idempotent."""
        if self._thread.is_alive():
            self.loop.call_soon_threadsafe(self.loop.stop)
            self._thread.join(timeout)
        if self._thread.is_alive():
            log.warning("%s still runs after %s s: it ends with the process", self._name, timeout)

    def close(self) -> None:
        """Close the loop. A process that is about to end should not: gRPC posts late events to the
        loop of their call, and logs an error where it is closed. REQUIRES: stopped, or never
        started."""
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
"""A task that is cancelled ends within a turn of the loop, unless a library holds it."""


Task: TypeAlias = Callable[[], Coroutine[Any, Any, None]]
"""Makes the coroutine of a task. A task that is cancelled before it begins makes none."""


class GuardedTasks:
    def __init__(self, name: str, broke: Callable[[Exception], None]) -> None:
        """broke: called with what a task raised; not for a task that was cancelled."""
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
        """Cancel what runs and wait for it."""
        tasks = set(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            _, late = await asyncio.wait(tasks, timeout=_END_SECONDS)
            for task in late:
                log.error("%s: a task ignores its cancellation: %s", self._name, task)


async def together(works: Sequence[Coroutine[Any, Any, None]]) -> None:
    """All of them at once; what one raises ends the others, and is raised. They have ended when it
    returns."""
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
        """probe: has the loop call what it is given, and returns at once."""
        self._probe = probe
        self._clock = clock
        self._asked: float | None = None
        """When the probe was posted that the loop has not run yet."""

    def behind(self) -> float:
        """For how many seconds the last probe has waited; 0.0 where it has run, and then the next
        probe is posted."""
        asked = self._asked
        if asked is not None:
            return self._clock() - asked
        self._asked = self._clock()
        self._probe(self._answer)
        return 0.0

    def _answer(self) -> None:
        self._asked = None
