"""The GPU's work during some steps of an engine, by the profiler's timeline. Idle times and kernel
times become rows of a report.

Profiling costs host time, so the idle time is an upper bound.
"""

import math
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

import torch
from torch.profiler import ProfilerActivity, profile

from tasuki.bench.errors import BenchError

from .report import Report, Row

_NAME = re.compile(r"(?:void )?([\w:]+)")
"""Pattern for a kernel's name without its template arguments."""


@dataclass(frozen=True)
class Work:
    """A kernel or a copy on the GPU. Times in seconds."""

    name: str
    begin: float
    end: float


@dataclass(frozen=True)
class KernelTime:
    """One kernel's mean use in a step. seconds: time of all its launches after the end of earlier
    kernels. A kernel with an early start waits for the one before it, and this wait does not
    count. launches: number of its launches."""

    name: str
    seconds: float
    launches: float


def work_of(step: Callable[[], object], steps: int) -> list[Work]:
    """Profile `steps` calls of `step`, and return the GPU's kernels and copies. Raises BenchError
    if the profiler sees no GPU work."""
    with profile(activities=[ProfilerActivity.CUDA]) as profiled:
        for _ in range(steps):
            step()
        torch.cuda.synchronize()
    found = [
        Work(event.name, event.time_range.start / 1e6, event.time_range.end / 1e6)
        for event in profiled.events() or []
        if event.device_type.name == "CUDA"
    ]
    if len(found) <= steps:
        raise BenchError(f"the profiler saw {len(found)} pieces of GPU work in {steps} steps")
    return found


def idle_between_steps(step: Callable[[], object], steps: int) -> float:
    """Return the median idle seconds of the GPU from one step's last kernel to the next step's
    first.

    A step's kernels follow each other far more closely than steps do, so the longest gaps are those
    between steps. Raises the errors of work_of().
    """
    return median(sorted(gaps(work_of(step, steps)), reverse=True)[: steps - 1])


def gaps(work: Iterable[Work]) -> list[float]:
    """Return the GPU's idle times in seconds, in order. Overlapping kernels and copies count as
    one."""
    joined: list[tuple[float, float]] = []
    for begin, end in sorted((piece.begin, piece.end) for piece in work):
        if joined and begin <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(end, joined[-1][1]))
        else:
            joined.append((begin, end))
    return [later[0] - earlier[1] for earlier, later in pairwise(joined)]


def kernel_times(work: Iterable[Work], steps: int) -> list[KernelTime]:
    """Return each kernel's mean use in a step, longest first. Their sum is the GPU's busy time.
    steps: number of profiled steps."""
    seconds, launches = defaultdict[str, float](float), Counter[str]()
    done = -math.inf
    for piece in sorted(work, key=lambda piece: piece.begin):
        found = _NAME.match(piece.name)
        name = found[1] if found else piece.name
        seconds[name] += max(0.0, piece.end - max(piece.begin, done))
        launches[name] += 1
        done = max(done, piece.end)
    times = [
        KernelTime(name, total / steps, launches[name] / steps) for name, total in seconds.items()
    ]
    return sorted(times, key=lambda time: -time.seconds)


_LEAST_SHARE = 0.01
"""Smallest share of all kernel time giving a kernel a row of its own."""


def add_kernels(report: Report, name: str, work: Sequence[Work], times: int) -> None:
    """Add a report row for each kernel with a large enough share of the time.

    name: name of the step or prompt. work: its kernels and copies. times: number of its runs.
    """
    found = kernel_times(work, times)
    whole = sum(kernel.seconds for kernel in found)
    for kernel in found:
        if kernel.seconds >= _LEAST_SHARE * whole:
            extra = {"launches a step": kernel.launches, "% of all": 100 * kernel.seconds / whole}
            report.add(Row(f"{name}: {kernel.name}", kernel.seconds, extra=extra))
