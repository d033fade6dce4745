"""A follower's process as its leader sees it."""

import os
import select
import signal
import socket
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from tasuki.utils.child_process import Job, start_child_at_once
from tasuki.utils.commands import PACKAGE


@dataclass
class RankProcess:
    """Owns the process and this end of its socket. child: where this process started it. handle: of
    pidfd_open(2), readable once it has ended."""

    pid: int
    connection: socket.socket
    child: "subprocess.Popen[bytes] | None" = None
    handle: int = field(init=False)

    def __post_init__(self) -> None:
        self.handle = os.pidfd_open(self.pid)

    def kill(self) -> None:
        """SIGKILL, also where it stands still; whoever writes to it has an error. Idempotent."""
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.handle, signal.SIGKILL)
        with suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)

    def ended_how(self) -> str:
        """In words. REQUIRES: it has ended."""
        status = None if self.child is None else self.child.wait()
        if status is None:
            return "has ended"
        if status < 0:
            return f"was ended by {signal.Signals(-status).name}"
        return f"has ended with status {status}"

    def reap(self, seconds: float) -> bool:
        """Whether it has ended within that time; leaves no zombie where it was started here."""
        poll = select.poll()
        poll.register(self.handle, select.POLLIN)
        if not poll.poll(seconds * 1000):
            return False
        if self.child is not None:
            self.child.wait()
        return True

    def close(self) -> None:
        self.connection.close()
        os.close(self.handle)


def start_ranks(jobs: Sequence[Job]) -> list[RankProcess]:
    """A process for each. REQUIRES: the calling thread lives as long as they are to."""
    started: list[RankProcess] = []
    try:
        for job in jobs:
            child, ours = start_child_at_once(f"{PACKAGE}.engine.parallel.rank_main", job)
            started.append(RankProcess(child.pid, ours, child))
    except BaseException:
        for process in started:
            process.kill()
        raise
    return started
