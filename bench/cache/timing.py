"""Timers of thread CPU time for single calls, and percentiles of many calls. Knows nothing of
caches."""

import ctypes
import gc
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

now = time.thread_time_ns


def _clock_cost() -> int:
    costs = []
    for _ in range(2_001):
        start = now()
        costs.append(now() - start)
    return int(statistics.median(costs))


# Time between two consecutive readings of the clock: half a microsecond on a virtual machine,
# longer than some timed calls. It is subtracted from every measured interval.
CLOCK_NS = _clock_cost()


def median_us(call: Callable[[], Any], repeats: int) -> float:
    """Return the median CPU microseconds of `call` over `repeats`, after two calls to warm the
    buffers."""
    call()
    call()
    taken = []
    for _ in range(repeats):
        start = now()
        call()
        taken.append(now() - start)
    return (statistics.median(taken) - CLOCK_NS) / 1e3


def percentile_us(taken: Sequence[int], percent: float) -> float:
    """Return a percentile, in microseconds. taken: intervals in nanoseconds. percent: 0 to 100."""
    ordered = sorted(taken)
    return (ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))] - CLOCK_NS) / 1e3


class _HeapUse(ctypes.Structure):
    """The C struct mallinfo2 of glibc: counters of malloc."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in (
            *("arena", "ordblks", "smblks", "hblks", "hblkhd"),
            *("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"),
        )
    ]


def heap_bytes() -> int:
    """Return the bytes allocated by malloc in this process, including its own headers."""
    use = ctypes.CDLL(None).mallinfo2
    use.restype = _HeapUse
    info = use()
    return int(info.uordblks + info.hblkhd)


def quiet(warm_bytes: int = 1 << 30) -> None:
    """Turn off Python's garbage collector, and touch `warm_bytes` of the heap in advance. On a
    virtual machine the first touch of a page may cost more than the timed call."""
    gc.collect()
    gc.freeze()
    gc.disable()
    libc = ctypes.CDLL(None)
    libc.malloc.restype = ctypes.c_void_p
    libc.malloc.argtypes = [ctypes.c_size_t]
    libc.free.argtypes = [ctypes.c_void_p]
    trim_threshold, mmap_threshold, piece = -1, -3, 16 << 20
    libc.mallopt(mmap_threshold, 32 << 20)
    libc.mallopt(trim_threshold, 2**31 - 1)
    pieces = [libc.malloc(piece) for _ in range(warm_bytes // piece)]
    for each in pieces:
        ctypes.memset(each, 1, piece)
    for each in pieces:
        libc.free(each)
