"""How the processor time of a piece of work grows with its input."""

import time
from collections.abc import Callable
from itertools import pairwise
from typing import TypeAlias

Work: TypeAlias = Callable[[], object]

MOST_RATIO = 6.0
"""The bound on the ratio of two costs at four times the size: 4 is linear, 16 quadratic."""
_REPEATS = 3
_MOST_REPEATS = 12
_NOISE_SECONDS = 0.002
"""Costs below this differ by chance."""


def cpu_seconds(prepare: Callable[[], Work]) -> float:
    """Return the least processor time of three runs. The preparation is not measured."""
    return min(_seconds(prepare()) for _ in range(_REPEATS))


def cpu_ratios(prepare: Callable[[int], Work], size: int) -> list[float]:
    """Return the ratios of the costs at `size`, 4 and 16 times of it, each to the one before.

    The sizes take turns, since a neighbour of the processor's core may double a cost for a while.
    Ratios a little over MOST_RATIO are therefore measured again."""
    runs: list[list[float]] = []
    while True:
        runs.append([_seconds(prepare(count)) for count in (size, 4 * size, 16 * size)])
        costs = [max(min(run), _NOISE_SECONDS) for run in zip(*runs, strict=True)]
        ratios = [later / earlier for earlier, later in pairwise(costs)]
        in_doubt = MOST_RATIO < max(ratios) < 2 * MOST_RATIO
        if len(runs) >= (_MOST_REPEATS if in_doubt else _REPEATS):
            return ratios


def _seconds(work: Work) -> float:
    begin = time.process_time()
    work()
    return time.process_time() - begin
