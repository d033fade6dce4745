"""Threads for a request's work on the processor: parsing a body, rendering a template, tokenizing,
trying a grammar.

Owns the threads and the bounds on waiting work. `run` belongs to an event loop's thread; the work
itself must be good for any thread. Invariants: at most `waiting` pieces of each kind, large and
other, wait or run; one line's work takes no more than half of the threads, and none of another
line's turns; large work has one thread of its own, so that it takes the interpreter's lock from
nobody more than once at a time; work whose caller left before it began is never begun; the memory
of failed work is freed on its own thread.
"""

import asyncio
import time
import traceback
from collections.abc import Callable
from typing import TypeVar

from tasuki.utils.fair_threads import FairThreads, LinesFull
from tasuki.utils.free_memory import FreeMemory, map_large_blocks
from tasuki.utils.lock_turns import shorten_lock_turns

from .errors import Busy

Result = TypeVar("Result")

_THREADS = 4
_WAITING = 256
_LARGE_BYTES = 1 << 17
"""A chat of some 30,000 tokens."""
_LARGE_SECONDS = 0.1
"""Of the processor: whose work takes so long has read megabytes."""


class WorkThreads:
    """threads: how many; they start with the first work. waiting: pieces that may run or wait.
    Also sets for how long any thread of this process keeps the interpreter's lock, since the event
    loop writes tokens while prompts are read; and where this process has large blocks of memory."""

    def __init__(self, threads: int = _THREADS, waiting: int = _WAITING) -> None:
        shorten_lock_turns()
        map_large_blocks()
        of_a_line = max(1, threads // 2)
        self._threads = FairThreads(threads, of_a_line, "tasuki-front", waiting)
        self._large = FairThreads(1, 1, "tasuki-large", waiting)
        self._waiting = waiting
        self._memory = FreeMemory()

    async def run(self, line: str, work: Callable[[], Result], size: int = 0) -> Result:
        """Returns or raises as `work` does. line: whose turn it takes (RequestContext.line). size:
        bytes that the work reads. Raises Busy where `waiting` pieces are held: at once, or later in
        another line's favour."""
        threads = self._large if size > _LARGE_BYTES else self._threads
        try:
            begun = threads.submit(line, lambda: _tidied(work, self._memory))
            return await asyncio.wrap_future(begun)
        except LinesFull as error:
            raise Busy(
                f"{self._waiting} prompts wait to be read: ask again in a moment, or another node"
            ) from error


def _tidied(work: Callable[[], Result], memory: FreeMemory) -> Result:
    """Frees the frames of a failed work here: an error keeps all that they hold, and freeing it
    takes a while. What a large one held goes back to the system."""
    began = time.thread_time()
    try:
        return work()
    except Exception as error:
        failed: BaseException | None = error
        while failed is not None:
            traceback.clear_frames(failed.__traceback__)
            failed = failed.__cause__ or failed.__context__
        raise
    finally:
        if time.thread_time() - began > _LARGE_SECONDS:
            memory.give_back_later()
