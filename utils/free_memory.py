"""Memory that nothing holds, given back to the system."""

import ctypes
import threading
import time
from collections.abc import Callable

_PART = 0.01
"""Of the time, at most: a heap of half a million holes is looked through in 50 ms, each time, and
who allocates from it waits meanwhile. Where there are few, it takes 0.3 ms."""


def _heap_trim() -> Callable[[int], int]:
    try:
        trim = ctypes.CDLL(None).malloc_trim
    except (OSError, AttributeError):
        # Not glibc, whose heaps of each thread keep what a large request left behind.
        return lambda pad: 0
    trim.argtypes, trim.restype = [ctypes.c_size_t], ctypes.c_int
    found: Callable[[int], int] = trim
    return found


class FreeMemory:
    """Of the process. Thread rule: any."""

    def __init__(
        self,
        trim: Callable[[int], int] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """trim: as malloc_trim(), which it is by default."""
        self._trim = trim or _heap_trim()
        self._clock = clock
        self._trims = threading.Lock()
        self._rests_until = clock()

    def give_back(self) -> None:
        """Unless it was just now, or another thread does: without the interpreter's lock."""
        if not self._trims.acquire(blocking=False):
            return
        try:
            began = self._clock()
            if began < self._rests_until:
                return
            self._trim(0)
            now = self._clock()
            self._rests_until = now + (now - began) / _PART
        finally:
            self._trims.release()
