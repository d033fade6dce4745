"""The owner of a node's trial server: starts it at the first connection, and again if it ends.

Owns the socket where clients connect, the server's process, and a thread that waits for either.
Thread rule: any. Invariants: the process ends with this object, and with this process; connections
that come while it starts are kept by the system and served then.

The socket has a name of the system's abstract kind, so nothing of it stays behind. The name is
random, and the server serves processes of its own user alone.
"""

import logging
import os
import secrets
import select
import socket
import subprocess
import sys
import threading
import time
import weakref

import msgspec

from tasuki.model.grammar.vocabulary import Vocabulary
from tasuki.utils.system import name_this_thread

from .server import TrialJob

log = logging.getLogger(__name__)

_SERVER = "tasuki.model.grammar.trials.server"
TRY_SOURCE = "tasuki.model.grammar.trials.trial:tried"
_BACKLOG = 256
_REST_SECONDS = 0.5
"""Between two starts of a server that ended by itself."""


class TrialHost:
    def __init__(self, vocabulary: Vocabulary, try_source: str = TRY_SOURCE) -> None:
        """try_source: MODULE:NAME of a Try, which runs in each trial."""
        cores = len(os.sched_getaffinity(0))
        self._job = TrialJob(vocabulary.tokens, vocabulary.eos_ids, try_source, cores)
        self._lock = threading.Lock()
        self._watch: _Watch | None = None
        self._address = ""

    def open(self) -> str:
        """Return the address where clients connect, and take connections from now on."""
        with self._lock:
            if self._watch is None:
                listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
                self._address = f"\0tasuki-trials-{secrets.token_hex(16)}"
                listener.bind(self._address)
                listener.listen(_BACKLOG)
                self._watch = _Watch(listener, self._job)
                weakref.finalize(self, self._watch.stop)
            return self._address

    def close(self) -> None:
        """End the server's process, and take no connection any more."""
        with self._lock:
            if self._watch is not None:
                self._watch.stop()


class _Watch:
    """The thread. It holds no reference to the host, so that the host can be collected."""

    def __init__(self, listener: socket.socket, job: TrialJob) -> None:
        self._listener = listener
        self._job = job
        self._woken, self._wakes = socket.socketpair()
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._stops = False
        self._thread = threading.Thread(target=self._run, name="tasuki-trials", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Idempotent. Returns once the process has ended."""
        with self._lock:
            if self._stops:
                return
            self._stops = True
            self._wakes.send(b".")
            if self._process is not None:
                self._process.kill()
        self._thread.join()
        for end in (self._listener, self._woken, self._wakes):
            end.close()

    def _run(self) -> None:
        name_this_thread()
        while True:
            select.select([self._listener, self._woken], [], [])
            began = time.monotonic()
            with self._lock:
                if self._stops:
                    return
                self._process = self._started()
            if self._process is not None:
                self._give_job(self._process)
                status = self._process.wait()
                with self._lock:
                    if self._stops:
                        return
                log.warning("the process that tries grammars has ended with status %s", status)
            self._rest(began)

    def _started(self) -> "subprocess.Popen[bytes] | None":
        """Start the server. Returns None if the system has no room for a process now."""
        try:
            # The system ends the process with the thread that starts it, which is this one.
            return subprocess.Popen(
                [sys.executable, "-m", _SERVER, str(self._listener.fileno())],
                pass_fds=[self._listener.fileno()],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
            )
        except OSError as error:
            log.warning("the process that tries grammars cannot be started: %s", error)
            return None

    def _give_job(self, process: "subprocess.Popen[bytes]") -> None:
        assert process.stdin is not None
        try:
            with process.stdin as job:
                job.write(msgspec.msgpack.encode(self._job))
        except OSError:
            # It has ended already, and is waited for next.
            return

    def _rest(self, began: float) -> None:
        left = began + _REST_SECONDS - time.monotonic()
        if left > 0:
            select.select([self._woken], [], [], left)
