"""This process and its system: thread names, lock, service manager, CPU, free memory.

`top -H`, perf and /proc show a thread's name. Python sets the system's names only from 3.14 on. A
child may be set to die with its parent. A switch interval limits how long a computing thread keeps
the interpreter's lock while others wait.

Reports to the process's service manager (systemd's Type=notify) are datagrams to the socket in
NOTIFY_SOCKET. Without this variable nothing is sent. Thread rule: any thread. Reports never wait
and never fail: an unreachable manager is logged once for each message.

The CPU's number formats are the formats of its multiplication units.

FreeMemory gives free memory back to the system. Once a block of up to 32 MiB was freed, glibc keeps
freed blocks up to that block's size, and twice as much at the end of its heap. Bodies of megabytes
would leave a node larger by a hundred megabytes.
"""

import ctypes
import logging
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

from .signatures import Clock, Notice

_SET_DEATH_SIGNAL = 1
"""Number of the option PR_SET_PDEATHSIG of prctl(2): signal at the parent's end."""
_SET_NAME = 15
"""Number of the option PR_SET_NAME of prctl(2): name of a thread."""
_LONGEST = 15
"""Longest name of a thread in the system, in bytes."""


def name_this_thread() -> None:
    """Give the running thread's Python name to the system. Does nothing on a system without such a
    call, because names are only for people and measurements."""
    name = threading.current_thread().name.encode()[:_LONGEST]
    try:
        ctypes.CDLL(None).prctl(_SET_NAME, name, 0, 0, 0)
    except (AttributeError, OSError):
        return


def die_with_parent() -> None:
    """Have the system kill this process when its starting thread (in the parent process) ends. Do
    nothing on a system without such a call."""
    try:
        ctypes.CDLL(None).prctl(_SET_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0)
    except (AttributeError, OSError):
        return


_SECONDS = 0.0001
"""Switch interval in seconds. Python's default is 50 times longer. A token's way to a client and a
layer chunk each cost several switches."""


def shorten_lock_turns() -> None:
    """Shorten the interpreter's switch interval for all threads of this process; a shorter one
    stays. Some threads answer promptly (an event loop, a sender) while others compute."""
    sys.setswitchinterval(min(sys.getswitchinterval(), _SECONDS))


log = logging.getLogger(__name__)

_VARIABLE = "NOTIFY_SOCKET"


def report_ready(status: str) -> None:
    """Report to the service manager, if there is one: the service takes calls. status: a line for
    `systemctl status`."""
    _send(f"READY=1\nSTATUS={status}")


def report_stopping(status: str) -> None:
    """Report to the service manager, if there is one: the service begins to end. status: a line for
    `systemctl status`."""
    _send(f"STOPPING=1\nSTATUS={status}")


def _send(message: str) -> None:
    path = os.environ.get(_VARIABLE, "")
    if not path:
        return
    # "@" is the zero byte of an abstract socket's name.
    address = "\0" + path[1:] if path.startswith("@") else path
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as manager:
            manager.setblocking(False)
            manager.sendto(message.encode(), address)
    except OSError as error:
        log.warning("the service manager at %s takes no message: %s", path, error.strerror)


_NAMED_BY = ("flags", "Features")
_BF16 = frozenset({"avx512_bf16", "amx_bf16", "bf16"})
"""CPU flags of x86 and of Arm for bf16 multiplication."""


def has_bf16_units(cpuinfo: Path = Path("/proc/cpuinfo")) -> bool:
    """Return True if the CPU has units for bf16 multiplication. Return False if the system does not
    say. cpuinfo: path of the system's file."""
    try:
        with cpuinfo.open(encoding="utf-8", errors="replace") as lines:
            for line in lines:
                name, _, units = line.partition(":")
                if name.strip() in _NAMED_BY:
                    return not _BF16.isdisjoint(units.split())
    except OSError:
        return False
    return False


_PART = 0.01
"""Largest share of time spent in trims of the heap. A heap with half a million holes takes 50 ms at
each trim, and allocating threads wait meanwhile. A heap with few holes takes 0.3 ms."""


_MAPPED_BYTES = 4 << 20
"""Size in bytes of a block with a mapping of its own: the system has such blocks back as soon as
they are free. Smaller blocks come often, and a new mapping is cleared first."""
_KEPT_BYTES = 8 << 20
"""Free bytes allowed at the end of the heap after a trim."""
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3


Trim: TypeAlias = Callable[[int], int]
"""A function like malloc_trim(3). Its argument is the number of free bytes to keep."""

CallLater: TypeAlias = Callable[[float, Notice], None]
"""A function to call a function after a number of seconds, on any thread."""


def map_large_blocks() -> None:
    """Have glibc map large blocks of this process separately, independent of earlier frees. Does
    nothing without glibc. Any thread."""
    try:
        set_option = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return
    set_option(_M_MMAP_THRESHOLD, _MAPPED_BYTES)
    set_option(_M_TRIM_THRESHOLD, _KEPT_BYTES)


def _heap_trim() -> Trim:
    try:
        trim = ctypes.CDLL(None).malloc_trim
    except (OSError, AttributeError):
        # Only glibc needs it: its heaps of each thread keep memory freed by a large request.
        return lambda pad: 0
    trim.argtypes, trim.restype = [ctypes.c_size_t], ctypes.c_int
    found: Trim = trim
    return found


_LATER_SECONDS = 1.0


def _after(seconds: float, call: Notice) -> None:
    timer = threading.Timer(seconds, call)
    timer.daemon = True
    timer.start()


class FreeMemory:
    """The giving back of the process's free memory. Thread rule: any. Invariant: at least a second
    after each give_back_later() the memory is given back once, so no late free keeps a request's
    memory."""

    def __init__(
        self,
        trim: Trim | None = None,
        clock: Clock = time.monotonic,
        after: CallLater = _after,
    ) -> None:
        """Set up without a call. trim: a function like malloc_trim(); None: malloc_trim() itself.
        clock: seconds. after: calls a function after a number of seconds, on any thread."""
        self._trim = trim or _heap_trim()
        self._clock = clock
        self._after = after
        self._lock = threading.Lock()
        self._waits = False
        """True while a call of _give_back_now() is due or runs."""
        self._asked_again = False
        """True if give_back_later() was called while such a call was due: another call follows."""
        self._rests_until = clock()

    def give_back(self) -> None:
        """Give free memory back to the system now. The calling thread takes the time, without the
        interpreter's lock."""
        self._trim(0)

    def give_back_later(self) -> None:
        """Give free memory back to the system in a second, or at the next allowed time: memory in
        use now may be free then. If a call is waiting already, give memory back once more after
        it."""
        with self._lock:
            if self._waits:
                self._asked_again = True
                return
            self._waits = True
        self._call_later()

    def _call_later(self) -> None:
        self._after(max(_LATER_SECONDS, self._rests_until - self._clock()), self._give_back_now)

    def _give_back_now(self) -> None:
        began = self._clock()
        self.give_back()
        now = self._clock()
        self._rests_until = now + (now - began) / _PART
        with self._lock:
            self._waits = self._asked_again
            self._asked_again = False
            follows = self._waits
        if follows:
            self._call_later()
