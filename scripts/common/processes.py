"""What Linux counts of a process: its memory, its processor time, and what it started."""

import os
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")


def loop_seconds(pid: int) -> float:
    """Processor time of the process's first thread so far; 0 where it is gone."""
    return _processor_seconds(Path(f"/proc/{pid}/task/{pid}/stat"))


def resident(pid: int) -> int:
    """Bytes; 0 where the process is gone."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE
    except OSError:
        return 0


def tree(pid: int) -> list[int]:
    """The process and all below it."""
    found = [pid]
    for parent in found:
        for listed in Path(f"/proc/{parent}/task").glob("*/children"):
            try:
                found += map(int, listed.read_text().split())
            except OSError:
                continue
    return found


def tree_seconds(pid: int) -> float:
    """Processor time of a process and of all below it that live."""
    return sum(_processor_seconds(Path(f"/proc/{each}/stat")) for each in tree(pid))


def _processor_seconds(stat: Path) -> float:
    try:
        fields = stat.read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / _TICKS
