"""What the operating system is told of threads and processes: names, and who dies with whom.

`top -H`, perf and /proc show a thread's name. Python gives its own names to the system from 3.14 on
only.
"""

import ctypes
import signal
import threading

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
