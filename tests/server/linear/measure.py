"""Growth of a task's processor time and memory with its input.

Time is the process's own (`time.process_time`), so a busy machine makes no difference. Sizes are n,
4n and 16n. The smallest, n, takes `base` seconds, unless the work never takes so long. Thread rule:
the main thread only, since a signal ends work over its time.
"""

import ctypes
import gc
import math
import signal
import threading
import time
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from types import FrameType
from typing import TypeAlias

from tasuki.utils.system import map_large_blocks

Run: TypeAlias = Callable[[], object]
Prepare: TypeAlias = Callable[[int], Run]
"""Maker of the work over a fresh input of a given size. Building the input is not measured."""

MOST_RATIO = 6.0
"""Largest accepted ratio of costs at four times the size: 4 for a linear cost, 16 for a quadratic
one.

In a sum of powers of the size, the last ratio is the steepest. A steeper first ratio is a step of
the machine, such as the end of a cache. It counts only in the growth over all sizes.
"""
BASE_SECONDS = 0.05
_FIRST_SIZE = 256
_REPEATS = 3
# Another process on the same core may slow one size for seconds. No quadratic work passes even
# once.
_CONFIRMATIONS = 3
_LOOK_SECONDS = 0.05
# Smaller costs are noise of the clock, of the caches, and of objects made once.
_FLOOR_SHARE = 1 / 8
_FLOOR_BYTES = 128 << 10
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3


class TooSlow(Exception):
    """Error of work with more processor time than any linear work would take."""


@dataclass(frozen=True)
class Growth:
    """The costs of some work. costs: seconds or bytes by size. floor: the least cost in a ratio;
    smaller costs count as the floor."""

    costs: dict[int, float]
    floor: float

    @property
    def ratios(self) -> list[float]:
        """Return the ratio of each cost to the cost at a quarter of the size."""
        found = [max(cost, self.floor) for _, cost in sorted(self.costs.items())]
        return [later / earlier for earlier, later in pairwise(found)]

    @property
    def is_linear(self) -> bool:
        ratios = self.ratios
        return not ratios or (
            ratios[-1] <= MOST_RATIO and math.prod(ratios) <= MOST_RATIO ** len(ratios)
        )

    def __str__(self) -> str:
        shown = ", ".join(f"{size}: {cost:.4g}" for size, cost in sorted(self.costs.items()))
        return f"{{{shown}}} ratios {' '.join(f'{ratio:.1f}' for ratio in self.ratios)}"


@contextmanager
def limited(seconds: float) -> Iterator[None]:
    """Raise TooSlow in the body after this many seconds of processor time. Code outside the
    interpreter is interrupted only after its return.

    A thread watches the clock. With a kernel timer (ITIMER_PROF), a process's clock would advance
    only in ticks of milliseconds.
    """

    def end(number: int, frame: FrameType | None) -> None:
        raise TooSlow(f"not done after {seconds:g} s of processor time")

    def watch() -> None:
        while not done.wait(_LOOK_SECONDS):
            if time.process_time() - began > seconds:
                signal.pthread_kill(threading.main_thread().ident, signal.SIGUSR1)
                return

    done = threading.Event()
    before = signal.signal(signal.SIGUSR1, end)
    watching = threading.Thread(target=watch)
    began = time.process_time()
    watching.start()
    try:
        yield
    finally:
        done.set()
        watching.join()
        signal.signal(signal.SIGUSR1, before)


@contextmanager
def no_collections() -> Iterator[None]:
    """Disable the collector: it walks through all objects of a test run, for any measured work."""
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        gc.unfreeze()


@contextmanager
def one_heap() -> Iterator[None]:
    """Take blocks of all sizes from the heap. A front maps large blocks separately, with new pages
    each time. Four times the size would then cost more than four times."""
    set_option = ctypes.CDLL(None).mallopt
    set_option(_M_MMAP_THRESHOLD, 32 << 20)
    set_option(_M_TRIM_THRESHOLD, 1 << 30)
    try:
        yield
    finally:
        map_large_blocks()


def processor_seconds(prepare: Prepare, size: int, limit: float) -> float:
    """Return the processor time of the work in seconds. Raise TooSlow after `limit` seconds."""
    run = prepare(size)
    with limited(limit):
        began = time.process_time()
        run()
        return time.process_time() - began


def time_growth(prepare: Prepare, most: int, base: float, quick: int | None = None) -> Growth:
    """Measure the growth of processor time. most: the largest size allowed. quick: the largest size
    measured at first; None means most.

    A growth steeper than linear is measured again, with the best of three at each size. The first
    repeat uses the same sizes. Later repeats go up to `most`, with a base of BASE_SECONDS at least.
    """
    first = _sizes(prepare, most if quick is None else min(most, quick), base)
    for repeats in (1, _REPEATS):
        growth = _time_growth(prepare, first, base, repeats)
        if growth.is_linear:
            return growth
    base = max(base, BASE_SECONDS)
    for _ in range(_CONFIRMATIONS):
        growth = _time_growth(prepare, _sizes(prepare, most, base), base, _REPEATS)
        if growth.is_linear:
            break
    return growth


def _time_growth(prepare: Prepare, sizes: list[int], base: float, repeats: int) -> Growth:
    costs: dict[int, float] = {}
    # Each round measures all sizes, so other load on the machine slows them alike.
    for _ in range(repeats):
        for size in sizes:
            # No linear growth costs forty times as much as a quarter of the size.
            limit = 40 * max((cost for at, cost in costs.items() if at < size), default=base)
            try:
                cost = processor_seconds(prepare, size, limit)
            except TooSlow:
                cost = limit
            costs[size] = min(cost, costs.get(size, cost))
            if cost >= limit:
                break
    return Growth(costs, base * _FLOOR_SHARE)


def memory_growth(prepare: Prepare, sizes: list[int]) -> Growth:
    """Measure the most memory held at once by the work, without its input, in bytes."""
    costs: dict[int, float] = {}
    for size in sizes:
        run = prepare(size)
        tracemalloc.start()
        try:
            before = tracemalloc.get_traced_memory()[0]
            with limited(60.0):
                kept = run()
            costs[size] = tracemalloc.get_traced_memory()[1] - before
            del kept
        finally:
            tracemalloc.stop()
    return Growth(costs, _FLOOR_BYTES)


def _sizes(prepare: Prepare, most: int, base: float) -> list[int]:
    """Return n, 4n and 16n. n takes `base` seconds, or 16n is the largest size allowed."""
    size = min(_FIRST_SIZE, max(1, most // 16))
    while size * 16 < most:
        try:
            cost = processor_seconds(prepare, size, 40 * base)
        except TooSlow:
            cost = 40 * base
        if cost >= base:
            break
        factor = 2.0 if cost > base / 4 else 4.0
        size = min(int(size * factor), most // 16)
    return [size, 4 * size, 16 * size]
