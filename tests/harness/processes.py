"""Helpers for processes by their ids, and for free ports."""

import os
import random
import socket
from contextlib import suppress
from pathlib import Path

_GONE = FileNotFoundError, ProcessLookupError
"""The errors of reading a vanished process's file: when it is opened, or between its opening and
its reading."""


def gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def free_port(host: str = "127.0.0.1") -> int:
    """Return a port for a process binding it later, or again. It is below the kernel's own range,
    so no connection takes it meanwhile."""
    lowest = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    for port in random.SystemRandom().sample(range(lowest // 2, lowest), 50):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((host, port))
            except OSError:
                continue
            return port
    raise AssertionError("no free port")


def ended(pid: int) -> bool:
    """Return True if the process is gone, or is dead and not yet reaped by its parent."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except _GONE:
        return True
    return state == "Z"


def engine_of(daemon: int) -> int:
    """Return the pid of a daemon's engine process. REQUIRES: its engine is a separate process."""
    (found,) = [child for child in _children(daemon) if b"engine_main" in command_of(child)]
    return found


def workers_of(daemon: int) -> list[int]:
    """Return the pids of a daemon's front workers."""
    return [child for child in _children(daemon) if b"worker_main" in command_of(child)]


def followers_of(engine: int) -> list[int]:
    """Return the pids of the other ranks of an engine's process."""
    return [child for child in _children(engine) if b"rank_main" in command_of(child)]


def _children(pid: int) -> list[int]:
    found = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        # A thread may end meanwhile.
        with suppress(*_GONE):
            found += [int(child) for child in task.read_text().split()]
    return found


def command_of(pid: int) -> bytes:
    """Return the process's command line, with a zero byte after each argument; empty once the
    process is gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except _GONE:
        return b""
