"""A launcher of daemons as child processes. It stops them even if the caller dies.

Owns its own children and no others. A child reads stdin and stops at its end (--exit-with-parent).
So even a killed caller leaves no child behind.
"""

import json
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from queue import Empty, SimpleQueue
from typing import IO

from tasuki.client.errors import LaunchError
from tasuki.utils.program import PACKAGE

READY_SECONDS = 120.0
# A daemon drains for up to 30 seconds by default; a kill before then would cut the drain off.
STOP_SECONDS = 45.0
_TAIL_LINES = 40


class Daemon:
    """One daemon as a child process. Call `wait_ready` once, then `stop` once, both on the starting
    thread."""

    _tail_lines = _TAIL_LINES

    def __init__(self, command: str, flags: Sequence[str], bind: str = "127.0.0.1:0") -> None:
        """Start `tasuki COMMAND FLAGS` as a child process. bind: HOST:PORT of its gRPC server;
        default: a free loopback port."""
        self._command = command
        self._process = self._spawn([command, *_http_off(command, flags), *flags, "--bind", bind])
        self._http: str | None = None
        self._handover: str | None = None
        self._asked = False
        self._lines: SimpleQueue[str | None] = SimpleQueue()
        self._tail: deque[str] = deque(maxlen=self._tail_lines)
        self._readers = [
            self._read(self._process.stdout, self._lines.put),
            self._read(self._process.stderr, self._complain),
        ]

    def _spawn(self, arguments: Sequence[str]) -> "subprocess.Popen[str]":
        return subprocess.Popen(
            [sys.executable, "-m", f"{PACKAGE}.cli.main", *arguments, "--exit-with-parent"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            # A terminal's Ctrl-C goes to the caller alone, and the caller stops its children in
            # order.
            start_new_session=True,
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def exit_status(self) -> int | None:
        """Return the daemon's exit status, or None while it runs."""
        return self._process.poll()

    @property
    def http_address(self) -> str | None:
        """Return HOST:PORT of the daemon's HTTP server, if it has one. REQUIRES: wait_ready."""
        return self._http

    @property
    def handover_address(self) -> str | None:
        """Return HOST:PORT of the daemon's separate server for decode nodes. Returns None if decode
        nodes use the address from wait_ready. REQUIRES: wait_ready."""
        return self._handover

    @property
    def last_words(self) -> tuple[str, ...]:
        """Return the last lines written by the daemon to stderr so far."""
        return tuple(self._tail)

    def wait_ready(self, timeout: float = READY_SECONDS) -> str:
        """Wait until the daemon takes calls, and return its gRPC HOST:PORT. timeout: seconds.
        Raises LaunchError with the end of the daemon's stderr if the daemon ends or is late."""
        deadline = time.monotonic() + timeout
        while True:
            try:
                line = self._lines.get(timeout=max(0.0, deadline - time.monotonic()))
            except Empty:
                raise self._failure(f"was not ready within {timeout:.0f} s") from None
            if line is None:
                self._process.wait()
                self._readers[1].join()
                raise self._failure(f"ended with status {self._process.returncode}")
            announced = _announcement(line)
            if announced is not None:
                self._http = announced.get("http")
                self._handover = announced.get("handover")
                return announced["ready"]

    def ask_to_stop(self) -> None:
        """Send SIGTERM to the daemon once, so it drains and ends. Later calls do nothing: a second
        SIGTERM would cut its drain short."""
        if not self._asked and self._process.poll() is None:
            self._process.terminate()
        self._asked = True

    def stop(self, timeout: float = STOP_SECONDS) -> int:
        """Call ask_to_stop, then send SIGKILL after `timeout` seconds. Returns the daemon's exit
        status."""
        self.ask_to_stop()
        try:
            self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            self._process.kill()
        status = self._process.wait()
        for reader in self._readers:
            reader.join()
        for pipe in (self._process.stdin, self._process.stdout, self._process.stderr):
            if pipe is not None:
                pipe.close()
        return status

    def _failure(self, what: str) -> LaunchError:
        tail = " | ".join(self._tail) or "it wrote nothing"
        return LaunchError(f"tasuki {self._command} {what}: {tail}")

    def _complain(self, line: str | None) -> None:
        if line is not None:
            self._tail.append(line)

    @staticmethod
    def _read(pipe: IO[str] | None, take: Callable[[str | None], None]) -> threading.Thread:
        """Call `take` with each line of a child's pipe, then with None at its end. Without a reader
        a child blocks on a full pipe."""
        assert pipe is not None

        def run() -> None:
            for line in pipe:
                take(line.rstrip("\n"))
            take(None)

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        return thread


@contextmanager
def fused(flags: Sequence[str]) -> Iterator[str]:
    """Run one `tasuki serve` daemon in `with`. Yields its HOST:PORT."""
    with ExitStack() as stack:
        yield _started(stack, "serve", flags).wait_ready()


@contextmanager
def disaggregated(
    flags: Sequence[str], decode_flags: Sequence[str] = (), prefill_flags: Sequence[str] = ()
) -> Iterator[str]:
    """Run a prefill daemon and a decode daemon inside `with`. flags: flags of both. decode_flags,
    prefill_flags: flags of one. Yields the gRPC HOST:PORT of the decode daemon, for clients."""
    with ExitStack() as stack:
        daemon = _started(stack, "prefill", [*flags, *prefill_flags])
        address = daemon.wait_ready()
        prefill = daemon.handover_address or address
        flags = [*flags, *decode_flags, "--prefill", prefill]
        yield _started(stack, "decode", flags).wait_ready()


def _http_off(command: str, flags: Sequence[str]) -> list[str]:
    """Return `--no-http` for a `serve` command without HTTP flags, else no flag. `serve` has an
    HTTP server by default; a child has one only if its flags ask for it."""
    asking = ("--config", "--http-bind", "--host", "--port")
    asked = any(flag.startswith(asking) for flag in flags)
    return ["--no-http"] if command == "serve" and not asked else []


def _started(stack: ExitStack, command: str, flags: Sequence[str]) -> Daemon:
    daemon = Daemon(command, flags)
    stack.callback(daemon.stop)
    return daemon


def _announcement(line: str) -> dict[str, str] | None:
    """Return the fields of a daemon's ready line (JSON), or None for any other line."""
    try:
        fields = json.loads(line)
    except ValueError:
        return None
    if not isinstance(fields, dict) or not isinstance(fields.get("ready"), str):
        return None
    return fields
