"""How the processor time and the memory of a piece of work grow with its input.

Time is the process's own (`time.process_time`), so that a busy machine makes no difference. Sizes
are n, 4n and 16n, where n takes `base` seconds or the work never takes that long. Thread rule: the
main thread's, since a signal ends what takes too long.
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
"""From a size to the work over a fresh input of that size. Building the input is not measured."""

MOST_RATIO = 6.0
"""Of costs at four times the size: 4 where the cost is linear, 16 where it is quadratic.

A sum of powers of the size has its steepest ratio last. A steeper first ratio is a step of the
machine's, such as the end of a cache, so that it counts only in the growth over all sizes.
"""
BASE_SECONDS = 0.05
_FIRST_SIZE = 256
_REPEATS = 3
# A neighbour on the same core may slow one size for seconds. Nothing that is quadratic passes once.
_CONFIRMATIONS = 3
_LOOK_SECONDS = 0.05
# Less than this is noise: of the clock and the caches, and of what is made once.
_FLOOR_SHARE = 1 / 8
_FLOOR_BYTES = 128 << 10
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3


class TooSlow(Exception):
    """The work took more processor time than any linear one would."""


@dataclass(frozen=True)
class Growth:
    """costs: by size, in seconds or bytes. floor: the least cost that counts as one."""

    costs: dict[int, float]
    floor: float

    @property
    def ratios(self) -> list[float]:
        """Of each cost to the one at a quarter of the size."""
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
    """Raises TooSlow in the body behind so much processor time. What does not return to the
    interpreter is interrupted only once it does.

    A thread looks at the clock. With a timer of the kernel's (ITIMER_PROF) the clock of a process
    would only go in ticks of milliseconds.
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
    """The collector looks through all that a test run holds, whatever is measured."""
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
    """Blocks of all sizes come from the heap. A front maps large ones alone, whose pages are new
    each time: four times the size would cost more than four times."""
    set_option = ctypes.CDLL(None).mallopt
    set_option(_M_MMAP_THRESHOLD, 32 << 20)
    set_option(_M_TRIM_THRESHOLD, 1 << 30)
    try:
        yield
    finally:
        map_large_blocks()


def processor_seconds(prepare: Prepare, size: int, limit: float) -> float:
    """Raises TooSlow behind `limit` seconds."""
    run = prepare(size)
    with limited(limit):
        began = time.process_time()
        run()
        return time.process_time() - began


def time_growth(prepare: Prepare, most: int, base: float, quick: int | None = None) -> Growth:
    """most: the largest size that is let in. quick: the largest that is measured at first; None:
    most. A growth that looks steeper than linear is measured again, with the best of three at each
    size: at the same sizes, then up to the largest and with a base of BASE_SECONDS at least."""
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
    # All sizes in each round: what else the machine does then slows them alike.
    for _ in range(repeats):
        for size in sizes:
            # Forty times the cost at a quarter of the size is no linear growth's.
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
    """The most that the work holds at once, beside its input."""
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
    """n, 4n and 16n; n takes `base` seconds, or 16n is the largest size that is let in."""
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
