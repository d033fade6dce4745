"""A daemon whose front can be made to stand: its callers' event loop runs on the main thread, and
so does a signal's handler, which nothing of the daemon needs to know of.
"""

import os
import signal

from tasuki.cli.launcher import Daemon

SECONDS = 3.0
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

    _program = ("-c", _MAIN)
    _tail_lines = 400


def sleep_now(pid: int) -> None:
    """Its front stands for SECONDS; its other threads run."""
    os.kill(pid, signal.SIGUSR1)


def be_busy_now(pid: int) -> None:
    """Its front computes for SECONDS, and its other threads have to share the interpreter."""
    os.kill(pid, signal.SIGUSR2)
