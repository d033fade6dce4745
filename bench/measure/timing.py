"""Timers of work on a device: CUDA events and graph replays on a GPU, a monotonic clock on a CPU.

Every figure is the median of repeats after warm-ups, because both clocks have outliers.
"""

import math
import time
from collections.abc import Callable, Sequence
from statistics import median

import torch

Work = Callable[[], object]

# Long enough to hide the graph's own launch of some microseconds.
_LEAST_GRAPH_SECONDS = 1e-3
_MOST_ROUNDS = 32


def median_seconds(work: Work, device: torch.device, repeats: int = 10, warmups: int = 3) -> float:
    """Return the median seconds of one call of `work`, including launch gaps while the GPU waits
    for the host."""
    for _ in range(warmups):
        work()
    if device.type == "cpu":
        return median(_host_seconds(work) for _ in range(repeats))
    return median(_event_seconds(work) for _ in range(repeats))


def once_seconds(work: Work, device: torch.device) -> float:
    """Return the seconds of one call of `work`, without warm-up: for medians over alternating
    calls."""
    return _host_seconds(work) if device.type == "cpu" else _event_seconds(work)


def turn_seconds(turns: Sequence[Work], device: torch.device, repeats: int = 10) -> float:
    """Return the seconds of one of the `turns`. All turns do the same work on different memory.

    On a GPU all turns are captured into one CUDA graph, so launches cost the same as in the
    engine's graphs. With enough turns to overflow the L2 cache, memory traffic is real. Short turns
    are repeated several times in the graph.
    """
    if device.type == "cpu":
        return median_seconds(lambda: [turn() for turn in turns], device, repeats) / len(turns)
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for turn in turns:
            turn()
    torch.cuda.current_stream().wait_stream(stream)
    torch.cuda.synchronize()
    once = _replay_seconds(turns, device, repeats)
    rounds = min(math.ceil(_LEAST_GRAPH_SECONDS / once), _MOST_ROUNDS)
    seconds = once if rounds == 1 else _replay_seconds([*turns] * rounds, device, repeats) / rounds
    return seconds / len(turns)


def _replay_seconds(turns: Sequence[Work], device: torch.device, repeats: int) -> float:
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        # Keep the results, so no turn writes to memory with the previous turn's result in the
        # cache.
        kept = [turn() for turn in turns]
    seconds = median_seconds(graph.replay, device, repeats)
    del kept
    return seconds


def _host_seconds(work: Work) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def _event_seconds(work: Work) -> float:
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    start.record()
    work()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end)) / 1000
