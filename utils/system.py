"""This process and its system: thread names, the interpreter's lock, the service manager, the CPU.

`top -H`, perf and /proc show a thread's name. Python gives its own names to the system from 3.14 on
only. A child may be set to die with its parent. A switch interval sets how long a computing thread
keeps the interpreter's lock where others wait for it.

Reports to the service manager that started this process (systemd's Type=notify) are datagrams to
the socket that NOTIFY_SOCKET names; without one nothing is sent. Thread rule: any thread. Nothing
waits, and nothing fails: a manager that cannot be reached is logged once a message.

The CPU's number formats are those that it multiplies in units of its own.
"""

import ctypes
import logging
import os
import signal
import socket
import sys
import threading
from pathlib import Path

_SET_DEATH_SIGNAL = 1
"""PR_SET_PDEATHSIG of prctl(2)."""
_SET_NAME = 15
"""PR_SET_NAME of prctl(2)."""
_LONGEST = 15
"""Bytes of a name that the system keeps."""


def name_this_thread() -> None:
    """Give the running thread's Python name to the system. Where the system has no such call,
    nothing happens: a name is for people and measurements."""
    name = threading.current_thread().name.encode()[:_LONGEST]
    try:
        ctypes.CDLL(None).prctl(_SET_NAME, name, 0, 0, 0)
    except (AttributeError, OSError):
        return


def die_with_parent() -> None:
    """Have the system kill this process when the thread that started it ends. Where it has no such
    call, nothing happens."""
    try:
        ctypes.CDLL(None).prctl(_SET_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0)
    except (AttributeError, OSError):
        return


_SECONDS = 0.0001
"""By default it is 50 times that; a token's way to a client and a window each cost several
turns."""


def shorten_lock_turns() -> None:
    """Of all threads of this process, in which some answer at once, as an event loop or a sender
    does, while others compute."""
    sys.setswitchinterval(min(sys.getswitchinterval(), _SECONDS))


log = logging.getLogger(__name__)

_VARIABLE = "NOTIFY_SOCKET"


def report_ready(status: str) -> None:
    """The service takes calls. status: a line for `systemctl status`."""
    _send(f"READY=1\nSTATUS={status}")


def report_stopping(status: str) -> None:
    """The service has begun to end. status: as report_ready()."""
    _send(f"STOPPING=1\nSTATUS={status}")


def _send(message: str) -> None:
    path = os.environ.get(_VARIABLE, "")
    if not path:
        return
    # "@" stands for the zero byte of an abstract socket's name.
    address = "\0" + path[1:] if path.startswith("@") else path
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as manager:
            manager.setblocking(False)
            manager.sendto(message.encode(), address)
    except OSError as error:
        log.warning("the service manager at %s takes no message: %s", path, error.strerror)


_NAMED_BY = ("flags", "Features")
_BF16 = frozenset({"avx512_bf16", "amx_bf16", "bf16"})
"""Of x86, and of Arm."""


def has_bf16_units(cpuinfo: Path = Path("/proc/cpuinfo")) -> bool:
    """False where the system says nothing of it."""
    try:
        with cpuinfo.open(encoding="utf-8", errors="replace") as lines:
            for line in lines:
                name, _, units = line.partition(":")
                if name.strip() in _NAMED_BY:
                    return not _BF16.isdisjoint(units.split())
    except OSError:
        return False
    return False
