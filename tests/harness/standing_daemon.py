"""A daemon with a main thread a test can block. Its event loop for clients and a signal's handler
run on the main thread. The daemon's code needs no change."""

import os
import signal
import time
from collections.abc import Sequence
from typing import Any

from tasuki.cli import main as cli
from tests.harness.forked_daemon import ForkedDaemon

SECONDS = 3.0


class StandingDaemon(ForkedDaemon):
    """A Daemon with an event loop a test can block; see Daemon."""

    _tail_lines = 400

    def __init__(self, command: str, flags: Sequence[str], bind: str = "127.0.0.1:0") -> None:
        super().__init__(command, flags, bind, main=_serve)


def sleep_now(pid: int) -> None:
    """Block the daemon's main thread for SECONDS in a sleep; its other threads run."""
    os.kill(pid, signal.SIGUSR1)


def be_busy_now(pid: int) -> None:
    """Make the daemon's main thread compute for SECONDS, so its other threads must share the
    interpreter."""
    os.kill(pid, signal.SIGUSR2)


def _serve(arguments: list[str]) -> int:
    signal.signal(signal.SIGUSR1, lambda *_: time.sleep(SECONDS))
    signal.signal(signal.SIGUSR2, _compute)
    return cli.main(arguments)


def _compute(*_: Any) -> None:
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        pass
