"""A forked child for work on untrusted input, within bounds kept by the kernel.

The child has its own limits of address space, processor time and stack, and the lowest priority. If
memory is short, the kernel ends it first. It keeps no descriptor but its pipe and those named. It
writes one answer to its pipe and ends. Input with too high a cost ends it by a signal. Thread rule:
the parent's one thread forks; the child runs on it.
"""

import gc
import os
import resource
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NoReturn

from .system import die_with_parent

MAX_ANSWER_BYTES = 16 << 10
_LOWEST_PRIORITY = 19
_FIRST_TO_END = "1000"
"""Highest value of oom_score_adj."""


@dataclass(frozen=True)
class ChildBounds:
    """Bounds of one child. cpu_seconds: processor time. address_bytes: of address space, the
    parent's memory included. stack_bytes: of stack."""

    cpu_seconds: int
    address_bytes: int
    stack_bytes: int = 2 << 20


@dataclass(frozen=True)
class ChildEnd:
    """The end of a child. status: from wait4(). cpu_seconds: its processor time."""

    status: int
    answer: bytes
    cpu_seconds: float


@dataclass
class BoundedChild:
    """A running child, seen from its parent. pipe: carries its answer; reads do not block."""

    pid: int
    pipe: int
    answer: bytearray = field(default_factory=bytearray)
    is_reaped: bool = False

    def kill(self) -> None:
        """End the child. Does nothing once it was reaped: its number may be another process's."""
        if not self.is_reaped:
            os.kill(self.pid, signal.SIGKILL)

    def read(self) -> bool:
        """Read the child's present output, without a wait. Return true if more may come. Kill a
        child after output beyond one answer."""
        while len(self.answer) <= MAX_ANSWER_BYTES:
            try:
                data = os.read(self.pipe, MAX_ANSWER_BYTES)
            except BlockingIOError:
                return True
            if not data:
                return False
            self.answer += data
        self.kill()
        return False

    def reaped(self) -> ChildEnd | None:
        """Return the child's end; None while it runs."""
        return self._reaped(os.WNOHANG)

    def wait(self) -> ChildEnd:
        """Wait for the child's end, and return it. REQUIRES: it was killed, or its pipe is at its
        end."""
        ended = self._reaped(0)
        assert ended is not None
        return ended

    def close(self) -> None:
        """Close the pipe. REQUIRES: the child was reaped."""
        os.close(self.pipe)

    def _reaped(self, options: int) -> ChildEnd | None:
        pid, status, usage = os.wait4(self.pid, options)
        if pid == 0:
            return None
        self.is_reaped = True
        self.read()
        return ChildEnd(status, bytes(self.answer), usage.ru_utime + usage.ru_stime)


def fork_bounded(
    run: Callable[[], bytes], bounds: ChildBounds, kept: Sequence[int] = ()
) -> BoundedChild:
    """Fork a child, and return it. run: returns its answer, in the child. kept: descriptors that
    stay open there. REQUIRES: this process has one thread. Raises OSError if no process can be
    started."""
    read_end, write_end = os.pipe()
    os.set_blocking(read_end, False)
    parent = os.getpid()
    try:
        pid = os.fork()
    except OSError:
        os.close(read_end)
        os.close(write_end)
        raise
    if pid == 0:
        _run(run, bounds, write_end, (*kept, write_end), parent)
    os.close(write_end)
    return BoundedChild(pid, read_end)


def _run(
    run: Callable[[], bytes],
    bounds: ChildBounds,
    write_end: int,
    kept: Sequence[int],
    parent: int,
) -> NoReturn:
    """Run the child. No error here returns to the parent's code."""
    try:
        _bound_this_process(bounds, kept, parent)
        answer = run()
        while answer:
            answer = answer[os.write(write_end, answer) :]
        os._exit(0)
    except MemoryError:
        os.abort()
    except BaseException:
        os._exit(1)


def _bound_this_process(bounds: ChildBounds, kept: Sequence[int], parent: int) -> None:
    gc.disable()
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)
    die_with_parent()
    if os.getppid() != parent:
        # The parent ended before die_with_parent() took effect.
        os._exit(1)
    null = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(null, stream)
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    for before, after in pairwise((2, *sorted(kept), most)):
        os.closerange(before + 1, after)
    os.setpriority(os.PRIO_PROCESS, 0, _LOWEST_PRIORITY)
    _end_first_where_memory_is_short()
    for kind, soft, hard in (
        (resource.RLIMIT_CORE, 0, 0),
        (resource.RLIMIT_FSIZE, 0, 0),
        (resource.RLIMIT_STACK, bounds.stack_bytes, bounds.stack_bytes),
        (resource.RLIMIT_CPU, bounds.cpu_seconds, bounds.cpu_seconds + 1),
        (resource.RLIMIT_AS, bounds.address_bytes, bounds.address_bytes),
    ):
        resource.setrlimit(kind, (soft, hard))


def _end_first_where_memory_is_short() -> None:
    try:
        score = os.open("/proc/self/oom_score_adj", os.O_WRONLY)
    except OSError:
        return
    try:
        os.write(score, _FIRST_TO_END.encode())
    finally:
        os.close(score)
