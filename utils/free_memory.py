"""Memory that nothing holds, given back to the system. Thread rule: any."""

import ctypes
from collections.abc import Callable


def _trim() -> Callable[[int], int]:
    try:
        trim = ctypes.CDLL(None).malloc_trim
    except (OSError, AttributeError):
        # Not glibc, whose heaps of each thread keep what a large request left behind.
        return lambda pad: 0
    trim.argtypes, trim.restype = [ctypes.c_size_t], ctypes.c_int
    found: Callable[[int], int] = trim
    return found


def give_back_free_memory() -> None:
    """Takes milliseconds, without the interpreter's lock."""
    _trim()(0)
