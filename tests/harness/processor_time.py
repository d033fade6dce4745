"""Processor time of other processes: what a test compares where speed is claimed."""

import os
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")


def processor_seconds(pid: int) -> float:
    """In user and system mode, of all threads of a process that lives."""
    stat = Path(f"/proc/{pid}/stat").read_text()
    # The name in brackets may hold spaces.
    fields = stat.rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS
