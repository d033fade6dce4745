"""A daemon whose front can be made to stand: its callers' event loop runs on the main thread, and
so does a signal's handler, which nothing of the daemon needs to know of.
"""

import os
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Sequence
from queue import SimpleQueue

from tasuki.cli.launcher import Daemon

SECONDS = 3.0
_TAIL_LINES = 400
_MAIN = f"""
import signal, sys, time
from tasuki.cli import main as cli

def busy(*_):
    until = time.monotonic() + {SECONDS}
    while time.monotonic() < until:
        pass

signal.signal(signal.SIGUSR1, lambda *_: time.sleep({SECONDS}))
signal.signal(signal.SIGUSR2, busy)
sys.exit(cli.main(sys.argv[1:]))
"""


class StandingDaemon(Daemon):
    """Like Daemon, which see."""

    def __init__(self, command: str, flags: Sequence[str], bind: str = "127.0.0.1:0") -> None:
        self._command = command
        self._process = subprocess.Popen(
            [
                *(sys.executable, "-c", _MAIN, command, *flags),
                *("--bind", bind, "--exit-with-parent"),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        self._http = None
        self._handover = None
        self._asked = False
        self._lines = SimpleQueue()
        self._tail = deque(maxlen=_TAIL_LINES)
        self._readers = [
            self._read(self._process.stdout, self._lines.put),
            self._read(self._process.stderr, self._complain),
        ]


def sleep_now(pid: int) -> None:
    """Its front stands for SECONDS; its other threads run."""
    os.kill(pid, signal.SIGUSR1)


def be_busy_now(pid: int) -> None:
    """Its front computes for SECONDS, and its other threads have to share the interpreter."""
    os.kill(pid, signal.SIGUSR2)
