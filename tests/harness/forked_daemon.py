"""Daemons forked from a process with all modules already imported. Each costs a sixth of the
processor time of a daemon started with the interpreter.

Owns the children it started. Each is a daemon with its own transport and gRPC. It is in the
namespaces of the fork server (fork_server.py) unless its `main` enters others.
"""

import ctypes
import multiprocessing as mp
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.connection import Connection
from typing import IO

from tasuki.cli import main as cli
from tasuki.cli.launcher import STOP_SECONDS, Daemon
from tasuki.transfer import failpoints
from tests.harness.fork_server import forked

_DIE_WITH_PARENT = 1
"""The value of PR_SET_PDEATHSIG for prctl(): a child gets a signal at its parent's death."""


class ForkedDaemon(Daemon):
    """A Daemon started by a fork; see Daemon."""

    def __init__(
        self,
        command: str,
        flags: Sequence[str],
        bind: str = "127.0.0.1:0",
        environment: Mapping[str, str] | None = None,
        main: Callable[[list[str]], int] = cli.main,
    ) -> None:
        """Start the daemon. environment: variables different from this process's. main: a module's
        function, or a partial of one, with the arguments COMMAND and its flags."""
        self._environment = environment
        self._main = main
        super().__init__(command, flags, bind)

    def _spawn(self, arguments: Sequence[str]) -> "ForkedProgram":
        return ForkedProgram(self._main, list(arguments), self._environment)


class ForkedProgram:
    """A forked process with the part of Popen's interface used by a Daemon."""

    def __init__(
        self,
        main: Callable[[list[str]], int],
        arguments: Sequence[str],
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.stdin = None
        self.stdout, out = _pipe()
        self.stderr, err = _pipe()
        self._process = forked(_live, main, [*arguments], out, err, environment=environment)
        out.close()
        err.close()

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    def poll(self) -> int | None:
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        status = self.returncode
        if status is None:
            raise subprocess.TimeoutExpired("a forked daemon", timeout or STOP_SECONDS)
        return status

    def terminate(self) -> None:
        self._process.terminate()

    def kill(self) -> None:
        self._process.kill()


def _pipe() -> tuple[IO[str], Connection]:
    ours, theirs = mp.Pipe(duplex=False)
    handle = os.dup(ours.fileno())
    ours.close()
    return open(handle, errors="replace"), theirs


def _live(
    main: Callable[[list[str]], int], arguments: list[str], out: Connection, err: Connection
) -> None:
    """Run a forked daemon from start to end. out, err: its stdout and stderr."""
    ctypes.CDLL(None).prctl(_DIE_WITH_PARENT, signal.SIGTERM)
    os.setsid()
    os.dup2(out.fileno(), 1)
    os.dup2(err.fileno(), 2)
    # Read once, when it was imported: before this child had an environment of its own.
    failpoints.ARMED = failpoints.parse(os.environ.get(failpoints.VARIABLE, ""))  # type: ignore[misc]
    sys.exit(main(arguments))
