"""Tasks that one owner starts and ends together.

Owns them from start() to end(). Knows nothing of what they do. Thread rule: the event loop.
Invariants: what a task raises is reported once, never left for the garbage collector to find; end()
returns in bounded time, whatever a task does with its cancellation.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

log = logging.getLogger(__name__)

_END_SECONDS = 2.0
"""A task that is cancelled ends within a turn of the loop, unless a library holds it."""


class GuardedTasks:
    def __init__(self, name: str, broke: Callable[[Exception], None]) -> None:
        """broke: called with what a task raised; not for a task that was cancelled."""
        self._name = name
        self._broke = broke
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        task = asyncio.get_running_loop().create_task(self._guarded(work), name=self._name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _guarded(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
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
