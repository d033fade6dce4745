"""Time limits for waits in tests, so long that only a hang can exceed them.

No test measures speed by these limits: a busy machine may be a thousand times slower than a quiet
one. A test claiming speed counts steps, or compares processor times of one run. A manual clock is
advanced by the test.
"""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

HANG_SECONDS = 120.0


def until(holds: Callable[[], bool], what: object, seconds: float = HANG_SECONDS) -> float:
    """Wait until `holds` returns True, and return the seconds. After `seconds` fail with the text
    `what`, or with its result.

    It polls again after 5 ms plus a twentieth of the wait so far, and at least every 50 ms. A poll
    of a daemon takes processor time there and here.
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
    """A clock advanced by the test. now: its current time in seconds."""

    now: float = 100.0

    def __call__(self) -> float:
        return self.now


_TICKS = os.sysconf("SC_CLK_TCK")


def processor_seconds(pid: int) -> float:
    """Return the processor seconds, in user and system mode, of all threads of a running
    process."""
    stat = Path(f"/proc/{pid}/stat").read_text()
    # The name in brackets may hold spaces.
    fields = stat.rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS
