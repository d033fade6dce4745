"""How long a GPU stands still between the steps of an engine, by the profiler's timeline.

Profiling costs the host time, so that what comes out is an upper bound.
"""

from collections.abc import Callable, Iterable
from itertools import pairwise
from statistics import median

import torch
from torch.profiler import ProfilerActivity, profile

from .errors import BenchError

Span = tuple[float, float]
"""Begin and end of a piece of GPU work, seconds."""


def idle_between_steps(step: Callable[[], object], steps: int) -> float:
    """Median idle seconds from one step's last kernel to the next one's first.

    A step's kernels follow each other far more closely than steps do, so the longest gaps are those
    between steps. Raises BenchError where the profiler sees no GPU work.
    """
    with profile(activities=[ProfilerActivity.CUDA]) as profiled:
        for _ in range(steps):
            step()
        torch.cuda.synchronize()
    spans = [
        (event.time_range.start / 1e6, event.time_range.end / 1e6)
        for event in profiled.events() or []
        if event.device_type.name == "CUDA"
    ]
    if len(spans) <= steps:
        raise BenchError(f"the profiler saw {len(spans)} pieces of GPU work in {steps} steps")
    return median(sorted(gaps(spans), reverse=True)[: steps - 1])


def gaps(spans: Iterable[Span]) -> list[float]:
    """Seconds in which nothing ran, in order; overlapping pieces count as one."""
    joined: list[Span] = []
    for begin, end in sorted(spans):
        if joined and begin <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(end, joined[-1][1]))
        else:
            joined.append((begin, end))
    return [later[0] - earlier[1] for earlier, later in pairwise(joined)]
