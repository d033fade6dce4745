"""How long a test waits for what must come: until nothing but a hang can explain that it has not.

No test judges by these bounds: a busy machine may take seconds for what takes milliseconds on a
quiet one. Where speed itself is claimed, a test counts steps, or compares processor times of one
run. A manual clock is one that a test turns.
"""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

HANG_SECONDS = 120.0


def until(holds: Callable[[], bool], what: object, seconds: float = HANG_SECONDS) -> float:
    """Seconds until it held. Fails with `what`, or what it returns, after `seconds`.

    It looks again after 5 ms and a twentieth of the wait so far, and at least every 50 ms: a look
    at a daemon takes processor time there and here.
    """
    begun = time.monotonic()
    while not holds():
        waited = time.monotonic() - begun
        if waited > seconds:
            told = what() if callable(what) else what
            raise AssertionError(f"not within {seconds} s: {told}")
        time.sleep(min(0.05, 0.005 + waited / 20))
    return time.monotonic() - begun


@dataclass
class ManualClock:
    """now: seconds."""

    now: float = 100.0

    def __call__(self) -> float:
        return self.now


_TICKS = os.sysconf("SC_CLK_TCK")


def processor_seconds(pid: int) -> float:
    """In user and system mode, of all threads of a process that lives."""
    stat = Path(f"/proc/{pid}/stat").read_text()
    # The name in brackets may hold spaces.
    fields = stat.rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS
