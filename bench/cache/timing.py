"""Thread CPU time of single calls, and what to say of many. Knows nothing of caches."""

import gc
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

now = time.thread_time_ns


def median_us(call: Callable[[], Any], repeats: int) -> float:
    """Median microseconds of a call, after two calls that warm the buffers."""
    call()
    call()
    taken = []
    for _ in range(repeats):
        start = now()
        call()
        taken.append(now() - start)
    return statistics.median(taken) / 1e3


def percentile_us(taken: Sequence[int], percent: float) -> float:
    """Of nanoseconds, in microseconds."""
    ordered = sorted(taken)
    return ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))] / 1e3


def resident_bytes() -> int:
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * 4096


def quiet() -> None:
    """No collector pauses inside timed loops."""
    gc.collect()
    gc.freeze()
    gc.disable()
