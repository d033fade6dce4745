"""Runs one command on a machine with GPUs: with a time limit, in a process group of its own, its
output in a file."""

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from itertools import groupby
from pathlib import Path
from queue import SimpleQueue

import torch

VISIBLE = "CUDA_VISIBLE_DEVICES"
_GRACE_SECONDS = 5.0


class Verdict(Enum):
    PASSED = "passed"
    FAILED = "failed"
    OUT_OF_TIME = "out of time"
    LEFT_OUT = "left out: too few GPUs"
    TOO_LATE = "left out: too little time is left"


@dataclass(frozen=True)
class Run:
    """One command. name: its name, also of its log. gpus: number of GPUs it needs. seconds: time
    limit. decides: text for readers, naming the decision based on it. argv: arguments after the
    interpreter. is_timed: True if its figures need an otherwise idle machine."""

    name: str
    gpus: int
    seconds: float
    decides: str
    argv: tuple[str, ...]
    is_timed: bool = False


@dataclass(frozen=True)
class Outcome:
    run: Run
    verdict: Verdict
    seconds: float


def done(run: Run, interpreter: str, log: Path, gpus: Sequence[str]) -> Outcome:
    """Execute a run, and return its outcome. gpus: names for CUDA_VISIBLE_DEVICES. A run needing
    more GPUs is left out. All its processes have ended on return."""
    if run.gpus > len(gpus):
        return Outcome(run, Verdict.LEFT_OUT, 0.0)
    begun = time.monotonic()
    with log.open("wb") as output:
        process = subprocess.Popen(
            (interpreter, *run.argv),
            stdout=output,
            stderr=output,
            env={**os.environ, VISIBLE: ",".join(gpus), **_threads(run)},
            start_new_session=True,
        )
        try:
            verdict = Verdict.PASSED if process.wait(run.seconds) == 0 else Verdict.FAILED
        except subprocess.TimeoutExpired:
            verdict = Verdict.OUT_OF_TIME
        finally:
            _end(process)
    return Outcome(run, verdict, time.monotonic() - begun)


def _threads(run: Run) -> dict[str, str]:
    """Return environment variables limiting a run's threads. Tests have CPU reference
    implementations in many workers, so each worker must not use all cores."""
    return {} if run.is_timed else {"OMP_NUM_THREADS": "2"}


def _end(process: "subprocess.Popen[bytes]") -> None:
    """End the whole process group of a run, because its daemons hold GPU memory the next run needs.
    Interrupted tests still write the names of the failed ones."""
    for number in (signal.SIGINT, signal.SIGTERM):
        _signal(process.pid, number)
        with suppress(subprocess.TimeoutExpired):
            process.wait(_GRACE_SECONDS)
    _signal(process.pid, signal.SIGKILL)
    process.wait()


def _signal(group: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.killpg(group, number)


def visible_gpus() -> tuple[str, ...]:
    """Return the GPUs' names in CUDA_VISIBLE_DEVICES, else indices."""
    count = torch.cuda.device_count()
    named = os.environ.get(VISIBLE)
    return tuple(named.split(",") if named else map(str, range(count)))[:count]


def outcomes_of(
    runs: Sequence[Run], gpus: Sequence[str], outcome: Callable[[Run, Sequence[str]], Outcome]
) -> Iterator[Outcome]:
    """Yield the outcome of each run as it ends. Untimed runs of one GPU share the GPUs
    concurrently; any other run waits for all before it. outcome: executes a run on the given GPUs;
    called from several threads."""
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
