"""A client of the fetching process: addresses in, contents out, in turns of callers.

PictureFetcher owns the process and the threads that wait for its replies. A process that dies fails
its pictures with a typed error, and the next one starts another. Callers take turns: see
FairThreads.

Invariants: each future ends within a fetch's seconds and a second, once it has begun. Waiting
addresses are bounded, for each caller too. A cancelled one is never begun. The process ends with
this object, and with this process. Thread rule: any.
"""

import logging
import os
import socket
import subprocess
import sys
import threading
from collections import Counter
from concurrent.futures import Future
from dataclasses import dataclass

import msgspec

from tasuki.utils.fair_threads import FairThreads

from .addresses import FetchHosts
from .messages import LENGTH, MOST_MESSAGE_BYTES, FetchJob, FetchOutcome, FetchReply

log = logging.getLogger(__name__)

_WORKER = "tasuki.server.pictures.fetching.worker"
GETTER_SOURCE = "tasuki.server.pictures.fetching.getter:https_getter"
_THREADS = 8
_OF_A_CALLER = 4
_MOST_WAITING = 2048
_GRACE_SECONDS = 1.0
_START_SECONDS = 20.0
"""Seconds beyond a fetch's own for a process that has just started."""
_ASK_AGAIN = "ask again, or send data:image/png;base64,..."
_OF_PYTHON = ("PYTHONPATH", "PYTHONHOME", "PYTHONUSERBASE", "HOME", "LD_LIBRARY_PATH")
"""Variables by which Python finds its modules. No proxy and no key reaches the process."""


class FetchRefused(ValueError):
    """An address gives no picture. Its text gives the cause and the fix."""


class FetchTooLarge(FetchRefused):
    """The content of an address has too many bytes."""


class FetchesBusy(RuntimeError):
    """Too many addresses wait. The same one may be fetched a moment later."""

    def __init__(self) -> None:
        super().__init__("too many pictures wait to be fetched; ask again")


@dataclass(frozen=True)
class FetchBounds:
    """Bounds of fetching. seconds: of one address. most_waiting: addresses of one caller, waiting
    and being fetched."""

    seconds: float = 10.0
    most_waiting: int = 1024


class PictureFetcher:
    def __init__(
        self,
        hosts: FetchHosts,
        bounds: FetchBounds | None = None,
        getter_source: str = GETTER_SOURCE,
    ) -> None:
        """hosts: listed ones. bounds: None: the defaults. getter_source: MODULE:NAME of a function
        that makes the PictureGetter, in the process. The process starts with the first address."""
        self.hosts = hosts
        self._bounds = FetchBounds() if bounds is None else bounds
        self._source = getter_source
        self._threads = FairThreads(
            _THREADS, _OF_A_CALLER, "tasuki-fetch", _MOST_WAITING, FetchesBusy
        )
        self._lock = threading.Lock()
        self._waiting: Counter[str] = Counter()
        self._process: _Process | None = None
        self._is_closed = False
        self.lost = 0
        """Number of processes lost so far."""

    def fetch(self, line: str, url: str, most_bytes: int) -> "Future[bytes]":
        """Begin to fetch an address, and return the future of its content. line: its caller's
        queue. The future raises FetchRefused, FetchTooLarge and FetchesBusy. Raises FetchesBusy."""
        with self._lock:
            if self._waiting[line] >= self._bounds.most_waiting:
                raise FetchesBusy
            self._waiting[line] += 1
        try:
            begun = self._threads.submit(line, lambda: self._fetched(url, most_bytes))
        except BaseException:
            self._leave(line)
            raise
        begun.add_done_callback(lambda _: self._leave(line))
        return begun

    def close(self) -> None:
        """End the process. Pictures in work end with FetchRefused, as do later ones."""
        with self._lock:
            self._is_closed = True
            process, self._process = self._process, None
        if process is not None:
            process.end()

    def _leave(self, line: str) -> None:
        with self._lock:
            self._waiting -= Counter((line,))

    def _fetched(self, url: str, most_bytes: int) -> bytes:
        job = FetchJob(url, self.hosts.names, most_bytes, self._bounds.seconds)
        process = None
        try:
            process = self._taken()
            reply, content = process.fetch(job)
        except TimeoutError as error:
            raise FetchRefused(f"did not come in time: {_ASK_AGAIN}") from error
        except (OSError, msgspec.MsgspecError, EOFError) as error:
            if process is not None:
                self._drop(process)
            raise FetchRefused(f"was lost with its process: {_ASK_AGAIN}") from error
        match reply.outcome:
            case FetchOutcome.FETCHED:
                return content
            case FetchOutcome.TOO_LARGE:
                raise FetchTooLarge(f"has more than {most_bytes} bytes: send a smaller picture")
            case _:
                raise FetchRefused(reply.reason)

    def _taken(self) -> "_Process":
        """Return the process, a new one if need be. Raises OSError, FetchRefused."""
        with self._lock:
            if self._is_closed:
                raise FetchRefused("is not fetched, because this node stops: ask another one")
            if self._process is None:
                self._process = _Process(self._source)
            return self._process

    def _drop(self, process: "_Process") -> None:
        """Forget a process without an end of its own, once."""
        with self._lock:
            if self._process is not process:
                return
            self._process = None
            self.lost += 1
        log.warning("the process that fetches pictures has ended, with status %s", process.end())


class _Process:
    """The process and its socket. Any thread."""

    def __init__(self, source: str) -> None:
        """Start the process. Raises OSError."""
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            with theirs:
                # The system ends the process when the starting thread ends: one of the pool.
                self._process = subprocess.Popen(
                    [sys.executable, "-m", _WORKER, str(theirs.fileno()), source],
                    pass_fds=[theirs.fileno()],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    env={name: os.environ[name] for name in _OF_PYTHON if name in os.environ},
                )
        except OSError:
            self._socket.close()
            raise
        self._is_new = True

    def fetch(self, job: FetchJob) -> tuple[FetchReply, bytes]:
        """Return the reply and the content. Raises TimeoutError; OSError, EOFError and
        msgspec.MsgspecError, after which the process is of no use."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        with ours:
            with theirs:
                socket.send_fds(self._socket, [msgspec.msgpack.encode(job)], [theirs.fileno()])
            more = _START_SECONDS if self._is_new else _GRACE_SECONDS
            # The worker bounds the fetch itself; this bounds a worker that hangs.
            ours.settimeout(job.seconds + more)
            (length,) = LENGTH.unpack(_read(ours, LENGTH.size))
            if length > MOST_MESSAGE_BYTES:
                raise EOFError
            reply = msgspec.msgpack.decode(_read(ours, length), type=FetchReply)
            if reply.size > job.most_bytes:
                raise EOFError
            self._is_new = False
            return reply, _read(ours, reply.size)

    def end(self) -> int:
        """End the process, if it has not ended, and return its status."""
        self._process.kill()
        self._socket.close()
        return self._process.wait()


def _read(connection: socket.socket, size: int) -> bytes:
    """Return the next bytes. Raises EOFError at the end, OSError."""
    found = bytearray(size)
    view = memoryview(found)
    while view:
        count = connection.recv_into(view)
        if not count:
            raise EOFError
        view = view[count:]
    return bytes(found)
