"""A probe of a node's /health route, also watching its memory.

Owns a thread. Invariant: a late reply is measured in processor time of the node's event loop
thread, so a busy machine is no finding. Only an extreme delay counts by the clock.
"""

import http.client
import os
import threading
import time
from pathlib import Path
from typing import Self

_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")


def loop_seconds(pid: int) -> float:
    """Return the processor seconds of the process's first thread so far; 0 if the process is
    gone."""
    return _processor_seconds(Path(f"/proc/{pid}/task/{pid}/stat"))


def resident(pid: int) -> int:
    """Return the resident bytes of the process; 0 if it is gone."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE
    except OSError:
        return 0


def tree(pid: int) -> list[int]:
    """Return the ids of the process and all its descendants."""
    found = [pid]
    for parent in found:
        for listed in Path(f"/proc/{parent}/task").glob("*/children"):
            try:
                found += map(int, listed.read_text().split())
            except OSError:
                continue
    return found


def tree_seconds(pid: int) -> float:
    """Return the processor seconds of a process and its living descendants."""
    return sum(_processor_seconds(Path(f"/proc/{each}/stat")) for each in tree(pid))


def _processor_seconds(stat: Path) -> float:
    try:
        fields = stat.read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / _TICKS


class Probe:
    """A probe of a daemon's /health, active between start() and stop(). pid: the daemon's process;
    its first thread runs the event loop."""

    def __init__(self, address: str, pid: int, patience: float, interval: float = 0.1) -> None:
        """Set up a probe. address: HOST:PORT of the daemon's HTTP. patience: longest accepted time
        for a reply, in seconds of the clock. interval: seconds between two probes."""
        self._interval = interval
        self._address = address
        self._pid = pid
        self._patience = patience
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.answers = 0
        self.refused = 0
        self.worst_busy = 0.0
        """Longest processor time of the event loop during one probe, seconds."""
        self.waits: list[float] = []
        """Time to each probe's reply, seconds of the clock."""
        self.most_memory = 0
        """Largest resident bytes of the daemon seen by the probe."""

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._over.set()
        self._thread.join()

    @property
    def worst_wait(self) -> float:
        return max(self.waits, default=0.0)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *raised: object) -> None:
        self.stop()

    def _run(self) -> None:
        while not self._over.is_set():
            try:
                self._ask()
            except (OSError, http.client.HTTPException):
                self.refused += 1
            except ProcessLookupError:
                return
            self._over.wait(self._interval)

    def _ask(self) -> None:
        self.most_memory = max(self.most_memory, resident(self._pid))
        busy, began = loop_seconds(self._pid), time.monotonic()
        connection = http.client.HTTPConnection(self._address, timeout=self._patience)
        try:
            connection.request("GET", "/health")
            status = connection.getresponse().status
        finally:
            connection.close()
            self.waits.append(time.monotonic() - began)
            self.worst_busy = max(self.worst_busy, loop_seconds(self._pid) - busy)
        if status == 200:
            self.answers += 1
        else:
            self.refused += 1
