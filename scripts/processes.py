"""What Linux counts of a process: its memory, and the time of its event loop."""

import os
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")


def loop_seconds(pid: int) -> float:
    """Processor time of the process's first thread so far; 0 where it is gone."""
    try:
        fields = Path(f"/proc/{pid}/task/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / _TICKS


def resident(pid: int) -> int:
    """Bytes; 0 where the process is gone."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE
    except OSError:
        return 0
