"""Which runs go beside each other: tests of one GPU, one on each. What is timed has the machine."""

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from itertools import groupby
from queue import SimpleQueue

import torch

from .run import VISIBLE, Outcome, Run


def visible_gpus() -> tuple[str, ...]:
    """Their names in CUDA_VISIBLE_DEVICES."""
    count = torch.cuda.device_count()
    named = os.environ.get(VISIBLE)
    return tuple(named.split(",") if named else map(str, range(count)))[:count]


def outcomes_of(
    runs: Sequence[Run], gpus: Sequence[str], outcome: Callable[[Run, Sequence[str]], Outcome]
) -> Iterator[Outcome]:
    """Of each run, as it ends; a run begins behind those before it that share no lane with it.
    outcome: runs it on these GPUs; called from several threads."""
    for shares, some in groupby(runs, lambda run: run.gpus == 1 and not run.is_timed):
        if not shares or len(gpus) < 2:
            yield from (outcome(run, gpus) for run in some)
            continue
        free: SimpleQueue[str] = SimpleQueue()
        for gpu in gpus:
            free.put(gpu)

        def on_one(run: Run, free: SimpleQueue[str] = free) -> Outcome:
            gpu = free.get()
            try:
                return outcome(run, (gpu,))
            finally:
                free.put(gpu)

        with ThreadPoolExecutor(len(gpus)) as pool:
            for future in as_completed([pool.submit(on_one, run) for run in some]):
                yield future.result()
