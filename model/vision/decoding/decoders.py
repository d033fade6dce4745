"""A pool of decoding processes: an encoded picture in, its pixels out, both by shared memory.

PictureDecoders owns the processes and the threads that wait for them. Each process decodes one
picture at a time. Callers take turns: see FairThreads. A process that dies, or gives no answer in
its time, fails its picture with a typed error, and the next picture starts another.

Invariants: every future ends within the bounds of the worker, once its picture has begun. Waiting
pictures are bounded in number and bytes. A cancelled one is never begun. Processes end with this
object, and with this process. Thread rule: any.
"""

import logging
import os
import socket
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from tasuki.model.vision.grid import PictureError
from tasuki.model.vision.picture_file import PictureBounds, PictureHeader
from tasuki.model.vision.processor import Size
from tasuki.utils.fair_threads import FairThreads

from .messages import MOST_MESSAGE_BYTES, DecodeBounds, DecodeJob, DecodeReply, Outcome
from .shared_bytes import mapped_pixels, shared_content, shared_pixels

log = logging.getLogger(__name__)

Result = TypeVar("Result")
Frame = TypeVar("Frame")
Pixels = NDArray[np.uint8]
"""Pixels [height, width, 3] uint8, upright, on white."""

_WORKER = "tasuki.model.vision.decoding.worker"
DECODE_SOURCE = f"{_WORKER}:decoded"
_START_SECONDS = 20.0
"""Seconds beyond a job's own until its worker counts as lost. It bounds its child by itself."""
_CLOSED = "this node stops; ask another one"
_ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
"""A forking process has no other threads, so its libraries start none."""
_OF_PYTHON = ("PYTHONPATH", "PYTHONHOME", "PYTHONUSERBASE", "HOME", "LD_LIBRARY_PATH")
"""Variables by which Python finds its modules. No other one reaches a worker: they hold keys."""


@dataclass(frozen=True)
class EncodedPicture:
    """A file to decode. content: gives its encoded bytes. size: by its header. nbytes: held for it
    while it waits."""

    content: Callable[[], bytes]
    size: Size
    nbytes: int


class DecodersBusy(RuntimeError):
    """Too many pictures wait. The same one may be decoded a moment later."""

    def __init__(self) -> None:
        super().__init__("too many pictures wait to be decoded; ask again")


class DecoderLost(RuntimeError):
    """A picture's process was ended from outside. The same one may be decoded by another."""


class DecodersMissing(RuntimeError):
    """No picture can be decoded on this node: Pillow is missing."""


class PictureDecoders:
    def __init__(
        self,
        workers: int = 2,
        most_waiting: int = 256,
        most_waiting_bytes: int = 256 << 20,
        cost: DecodeBounds | None = None,
        decode_source: str = DECODE_SOURCE,
    ) -> None:
        """workers: processes, started with the first pictures. most_waiting: pictures waiting and
        decoding. most_waiting_bytes: of their files; the only picture of a caller may be above.
        cost: of one picture; None: the defaults. decode_source: MODULE:NAME of a Decode. It runs in
        each child."""
        self._source = decode_source
        self._cost = DecodeBounds() if cost is None else cost
        # A caller alone uses no more than half of the processes.
        self._threads = FairThreads(
            workers, max(1, workers // 2), "tasuki-decode", most_waiting, DecodersBusy
        )
        self._most_bytes = most_waiting_bytes
        self._held: Counter[str] = Counter()
        """Bytes of files waiting and decoding, by line. No number is 0."""
        self._lock = threading.Lock()
        self._idle: list[_Worker] = []
        self._all: set[_Worker] = set()
        self._is_closed = False
        self.lost = 0
        """Number of processes lost so far."""

    def decode(
        self, line: str, content: bytes, header: PictureHeader, bounds: PictureBounds
    ) -> "Future[Pixels]":
        """Begin to decode a picture, and return the future of its pixels. line: its caller's queue
        of waiting pictures. header: of the same content.

        The future raises PictureError for a file that cannot be decoded or is not as its header
        says, DecoderLost, DecodersBusy and DecodersMissing. Raises DecodersBusy.
        """
        file = EncodedPicture(lambda: content, header.size, len(content))
        return self.decode_each(line, [file], bounds, lambda pixels: pixels, lambda found: found[0])

    def decode_each(
        self,
        line: str,
        files: Sequence[EncodedPicture],
        bounds: PictureBounds,
        each: Callable[[Pixels], Frame],
        then: Callable[[Sequence[Frame]], Result],
    ) -> "Future[Result]":
        """Begin to decode some files one after the other, as decode(). each: reduces the pixels of
        one, before the next one is decoded. then: makes the result of all. These and the contents
        run on a thread of this object, and the future raises their exceptions too."""

        def work() -> Result:
            frames = []
            for file in files:
                size = file.size
                job = DecodeJob(
                    *(size.height, size.width, bounds.most_bytes, bounds.most_pixels, self._cost)
                )
                frames.append(each(self._decoded(job, file.content())))
            return then(frames)

        nbytes = sum(file.nbytes for file in files)
        self._hold(line, nbytes)
        try:
            begun = self._threads.submit(line, work)
        except BaseException:
            self._let_go(line, nbytes)
            raise
        begun.add_done_callback(lambda _: self._let_go(line, nbytes))
        return begun

    def _hold(self, line: str, nbytes: int) -> None:
        """Count a picture's bytes. Raises DecodersBusy above the bound. A caller without another
        picture passes, so none is shut out by others."""
        with self._lock:
            if line in self._held and self._held.total() + nbytes > self._most_bytes:
                raise DecodersBusy
            self._held[line] += nbytes

    def _let_go(self, line: str, nbytes: int) -> None:
        with self._lock:
            self._held -= Counter({line: nbytes})

    def close(self) -> None:
        """End all processes. Pictures in work end with DecoderLost, as do later ones."""
        with self._lock:
            self._is_closed = True
            idle, busy = [*self._idle], self._all - {*self._idle}
            self._idle.clear()
        for worker in busy:
            # Its thread meets the end of its socket, and ends the rest.
            worker.kill()
        for worker in idle:
            worker.end()

    def _decoded(self, job: DecodeJob, content: bytes) -> Pixels:
        worker = self._taken()
        try:
            reply, pixels = worker.decode(job, content)
        except (OSError, msgspec.MsgspecError) as error:
            self._drop(worker)
            raise DecoderLost(f"the process of a picture has ended ({error}); ask again") from error
        except BaseException:
            # The reply may be half read.
            self._drop(worker)
            raise
        self._put_back(worker)
        if pixels is not None:
            return pixels
        match reply.outcome:
            case Outcome.UNAVAILABLE:
                raise DecodersMissing(reply.reason)
            case Outcome.LOST:
                raise DecoderLost(reply.reason)
            case _:
                raise PictureError(reply.reason)

    def _taken(self) -> "_Worker":
        """Return an idle worker, else a new one. Raises DecoderLost."""
        while True:
            with self._lock:
                if self._is_closed:
                    raise DecoderLost(_CLOSED)
                worker = self._idle.pop() if self._idle else None
            if worker is None:
                return self._started()
            if not worker.has_ended:
                return worker
            self._drop(worker)

    def _started(self) -> "_Worker":
        """Return a new worker. Raises DecoderLost."""
        try:
            worker = _Worker(self._source)
        except OSError as error:
            raise DecoderLost(f"no process can be started ({error}); ask again") from error
        with self._lock:
            self._all.add(worker)
            if not self._is_closed:
                return worker
        self._drop(worker)
        raise DecoderLost(_CLOSED)

    def _put_back(self, worker: "_Worker") -> None:
        with self._lock:
            if not self._is_closed:
                self._idle.append(worker)
                return
        self._drop(worker)

    def _drop(self, worker: "_Worker") -> None:
        with self._lock:
            self._all.discard(worker)
            self.lost += not self._is_closed
        log.warning("a process that decodes pictures has ended, with status %s", worker.end())


class _Worker:
    """One process and its socket. One thread at a time; kill() on any."""

    def __init__(self, decode_source: str) -> None:
        """Start the process. Raises OSError."""
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            with theirs:
                # The system ends the process when the starting thread ends: one of the pool.
                self._process = subprocess.Popen(
                    [sys.executable, "-m", _WORKER, str(theirs.fileno()), decode_source],
                    pass_fds=[theirs.fileno()],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    env=_environment(),
                )
        except OSError:
            self._socket.close()
            raise

    def decode(self, job: DecodeJob, content: bytes) -> tuple[DecodeReply, Pixels | None]:
        """Return the reply, and the pixels if it was decoded. Raises OSError and
        msgspec.MsgspecError, after which the process is of no use."""
        with shared_content(content) as given, shared_pixels(job.size) as wanted:
            self._socket.settimeout(job.cost.wait_seconds + _START_SECONDS)
            socket.send_fds(self._socket, [msgspec.msgpack.encode(job)], [given, wanted])
            data = self._socket.recv(MOST_MESSAGE_BYTES)
            if not data:
                raise ConnectionResetError("without an answer")
            reply = msgspec.msgpack.decode(data, type=DecodeReply)
            if reply.outcome is not Outcome.DECODED:
                return reply, None
            # A mapping holds a descriptor, and pictures of many requests may wait.
            return reply, mapped_pixels(wanted, job.size).copy()

    @property
    def has_ended(self) -> bool:
        return self._process.poll() is not None

    def kill(self) -> None:
        self._process.kill()

    def end(self) -> int:
        """End the process, if it has not ended, and return its status."""
        self._process.kill()
        self._socket.close()
        return self._process.wait()


def _environment() -> dict[str, str]:
    """Return the environment of a worker."""
    kept = {name: os.environ[name] for name in _OF_PYTHON if name in os.environ}
    return {**kept, **_ONE_THREAD}
