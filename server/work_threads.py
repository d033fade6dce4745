"""Threads for a request's work on the processor: parsing a body, rendering a template, tokenizing.

Owns the threads and the bound on waiting work. `run` belongs to an event loop's thread; the work
itself must be good for any thread. Invariants: at most `waiting` pieces wait or run; work whose
caller left before it began is never begun; the memory of failed work is freed on its own thread.
"""

import asyncio
import threading
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from tasuki.utils.lock_turns import shorten_lock_turns
from tasuki.utils.os_threads import name_this_thread

from .errors import Busy

Result = TypeVar("Result")

_THREADS = 2
_WAITING = 256


class WorkThreads:
    """threads: how many; they start with the first work. waiting: pieces that may run or wait.
    Also sets for how long any thread of this process keeps the interpreter's lock: the event loop
    writes tokens while prompts are read."""

    def __init__(self, threads: int = _THREADS, waiting: int = _WAITING) -> None:
        shorten_lock_turns()
        self._executor = ThreadPoolExecutor(
            threads, thread_name_prefix="tasuki-front", initializer=name_this_thread
        )
        self._places = threading.BoundedSemaphore(waiting)
        self._waiting = waiting

    async def run(self, work: Callable[[], Result]) -> Result:
        """Returns or raises as `work` does. Raises Busy, at once, where `waiting` pieces are
        held."""
        if not self._places.acquire(blocking=False):
            raise Busy(
                f"{self._waiting} prompts wait to be read: ask again in a moment, or another node"
            )
        future = self._executor.submit(_tidied, work)
        future.add_done_callback(lambda _: self._places.release())
        return await asyncio.wrap_future(future)


def _tidied(work: Callable[[], Result]) -> Result:
    """Frees the frames of a failed work here: an error keeps all that they hold, and freeing it
    takes a while."""
    try:
        return work()
    except Exception as error:
        failed: BaseException | None = error
        while failed is not None:
            traceback.clear_frames(failed.__traceback__)
            failed = failed.__cause__ or failed.__context__
        raise
