"""Memory that nothing holds, given back to the system.

glibc keeps freed blocks of up to 32 MiB, and twice as much at the end of its heap, once one block
of that size was freed. Bodies of megabytes would leave a node larger by a hundred.
"""

import ctypes
import threading
import time
from collections.abc import Callable
from typing import TypeAlias

from tasuki.utils.signatures import Clock, Notice

_PART = 0.01
"""Of the time, at most: a heap of half a million holes is looked through in 50 ms, each time, and
who allocates from it waits meanwhile. Where there are few, it takes 0.3 ms."""


_MAPPED_BYTES = 4 << 20
"""Blocks of this size and more are mapped alone: the system has them back as soon as they are free.
Smaller ones come often, and a new mapping is cleared first."""
_KEPT_BYTES = 8 << 20
"""Free memory that may stay at the end of the heap."""
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3


Trim: TypeAlias = Callable[[int], int]
"""As malloc_trim(3): takes the bytes to keep."""

CallLater: TypeAlias = Callable[[float, Notice], None]
"""Has a call made in so many seconds, on any thread."""


def map_large_blocks() -> None:
    """Have large blocks of this process mapped alone, whatever was freed before. Does nothing where
    the C library is not glibc. Any thread."""
    try:
        set_option = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return
    set_option(_M_MMAP_THRESHOLD, _MAPPED_BYTES)
    set_option(_M_TRIM_THRESHOLD, _KEPT_BYTES)


def _heap_trim() -> Trim:
    try:
        trim = ctypes.CDLL(None).malloc_trim
    except (OSError, AttributeError):
        # Not glibc, whose heaps of each thread keep what a large request left behind.
        return lambda pad: 0
    trim.argtypes, trim.restype = [ctypes.c_size_t], ctypes.c_int
    found: Trim = trim
    return found


_LATER_SECONDS = 1.0


def _after(seconds: float, call: Notice) -> None:
    timer = threading.Timer(seconds, call)
    timer.daemon = True
    timer.start()


class FreeMemory:
    """Of the process. Thread rule: any. Invariant: at least a second after each give_back_later()
    the memory is given back once, so that no request's memory stays because it was freed late."""

    def __init__(
        self,
        trim: Trim | None = None,
        clock: Clock = time.monotonic,
        after: CallLater = _after,
    ) -> None:
        """trim: as malloc_trim(), which it is by default. after: has a call made in so many
        seconds, on any thread."""
        self._trim = trim or _heap_trim()
        self._clock = clock
        self._after = after
        self._lock = threading.Lock()
        self._waits = False
        """A call of _give_back_now() is due or runs."""
        self._asked_again = False
        """Since that call became due: another follows it."""
        self._rests_until = clock()

    def give_back(self) -> None:
        """Give back now: the calling thread takes the time, without the interpreter's lock."""
        self._trim(0)

    def give_back_later(self) -> None:
        """Give back in a second, or as soon as it may be done again: memory in use now may be free
        then. Asked while a call waits, it is done once more after that call."""
        with self._lock:
            if self._waits:
                self._asked_again = True
                return
            self._waits = True
        self._call_later()

    def _call_later(self) -> None:
        self._after(max(_LATER_SECONDS, self._rests_until - self._clock()), self._give_back_now)

    def _give_back_now(self) -> None:
        began = self._clock()
        self.give_back()
        now = self._clock()
        self._rests_until = now + (now - began) / _PART
        with self._lock:
            self._waits = self._asked_again
            self._asked_again = False
            follows = self._waits
        if follows:
            self._call_later()
