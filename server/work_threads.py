"""Threads for what one request costs a processor: parsing its body, its template, its tokens.

Owns the threads and how much may wait for one. Knows no request. `run` belongs to an event loop's
thread; what it runs is any thread's. Invariants: nothing waits without a bound, and work whose
caller left before it began is never begun; what failed work held is freed where it ran.
"""

import asyncio
import threading
import traceback
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from .errors import Busy

Result = TypeVar("Result")

_THREADS = 2
_WAITING = 256


class WorkThreads:
    """threads begin with the first work. waiting: pieces that may run or wait."""

    def __init__(self, threads: int = _THREADS, waiting: int = _WAITING) -> None:
        self._executor = ThreadPoolExecutor(threads, thread_name_prefix="tasuki-front")
        self._places = threading.BoundedSemaphore(waiting)
        self._waiting = waiting

    async def run(self, work: Callable[[], Result]) -> Result:
        """What `work` returns or raises. Raises Busy, at once, where no place is free."""
        if not self._places.acquire(blocking=False):
            raise Busy(
                f"{self._waiting} prompts wait to be read: ask again in a moment, or another node"
            )
        future = self._executor.submit(_tidied, work)
        future.add_done_callback(self._ended)
        return await asyncio.wrap_future(future)

    def _ended(self, future: "Future[Result]") -> None:
        self._places.release()


def _tidied(work: Callable[[], Result]) -> Result:
    """An error keeps what every frame below it held, and freeing that takes a while."""
    try:
        return work()
    except Exception as error:
        failed: BaseException | None = error
        while failed is not None:
            traceback.clear_frames(failed.__traceback__)
            failed = failed.__cause__ or failed.__context__
        raise
