"""`python -m tasuki.model.vision.decoding.worker FD SOURCE`: a process that decodes pictures.

FD: a socket of datagrams to the client. SOURCE: MODULE:NAME of a Decode. Not for people: a
PictureDecoders starts it, and it ends with its client's thread.

The worker itself reads no picture. For each it forks a child with bounds of the kernel. The child
keeps its input, its memory for pixels and a pipe, so a decoder's defect reaches nothing. It ends
with its picture. The worker has one thread, so fork() is safe. It has loaded every decoder before,
because a child can load none.

| of a child | bounded by |
| --- | --- |
| memory, processor time, stack, files' size | RLIMIT_AS, RLIMIT_CPU, RLIMIT_STACK, RLIMIT_FSIZE |
| time of the clock | the worker: it kills the child |
| files, sockets | RLIMIT_NOFILE of 0, and the filter of system calls (`syscalls`) |
| processes, signals to others | the filter; RLIMIT_NPROC of 0, unless it runs as root |
| privileges | no_new_privs |
| environment, secrets in it | the worker starts without one |

The filter needs a kernel with seccomp and an x86-64 or ARM processor. Elsewhere the limits hold
alone.
"""

import gc
import io
import os
import resource
import select
import signal
import socket
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from typing import Any, cast

import msgspec
import numpy as np
from numpy.typing import NDArray

from tasuki.model.vision.grid import PictureError
from tasuki.model.vision.picture_file import FORMATS, PillowMissing, read_pixels
from tasuki.utils.bounded_child import (
    MAX_ANSWER_BYTES,
    BoundedChild,
    ChildBounds,
    ChildEnd,
    fork_bounded,
)
from tasuki.utils.system import die_with_parent

from .messages import MOST_MESSAGE_BYTES, MOST_REASON, DecodeJob, DecodeReply, Outcome
from .shared_bytes import mapped_content, mapped_pixels
from .syscalls import forbid_calls

BASE_BYTES = 128 << 20
BYTES_A_PIXEL = 40
"""Address space of a child in addition to the worker's own: a base, and for each pixel.
Orientation, transparency and conversion hold copies of 4 bytes a pixel."""
_UNKNOWN_BYTES = 1 << 30
"""Address space of the worker, if the system does not report it."""
_COSTLY = "a picture takes too much time or memory to decode; send a smaller or simpler file"
_DAMAGED = "a picture cannot be decoded; send an undamaged file"
_LATE = "a picture was not decoded in its time on this busy node; ask again"
_LOST = "the process that decodes pictures was ended from outside; ask again"

Decode = Callable[[bytes, DecodeJob], NDArray[np.uint8]]
"""Return a picture's pixels [height, width, 3] uint8. Runs in the child. Raises PictureError."""


def decoded(content: bytes, job: DecodeJob) -> NDArray[np.uint8]:
    """Return the pixels, decoded with Pillow in the job's bounds. Raises PictureError."""
    return read_pixels(content, job.bounds)


class DecodeWorker:
    """The worker's loop. own_bytes: address space of this process."""

    def __init__(self, connection: socket.socket, decode: Decode, own_bytes: int) -> None:
        self._connection = connection
        self._decode = decode
        self._own_bytes = own_bytes

    def run(self) -> None:
        """Serve until the client closes its end. Raises OSError, msgspec.MsgspecError."""
        while True:
            data, handles, _, _ = socket.recv_fds(self._connection, MOST_MESSAGE_BYTES, 2)
            if not data:
                return
            try:
                job = msgspec.msgpack.decode(data, type=DecodeJob)
                content, pixels = handles
                reply = self._decoded(job, content, pixels)
            finally:
                for handle in handles:
                    os.close(handle)
            self._connection.send(msgspec.msgpack.encode(reply))

    def _decoded(self, job: DecodeJob, content: int, pixels: int) -> DecodeReply:
        address_bytes = self._own_bytes + BASE_BYTES + BYTES_A_PIXEL * job.size.pixels
        seconds = job.cost.seconds(job.size.pixels)
        bounds = ChildBounds(seconds, address_bytes)

        def run() -> bytes:
            given, wanted = mapped_content(content), mapped_pixels(pixels, job.size)
            # A mapping takes a descriptor, so no earlier.
            _shut_out()
            return msgspec.msgpack.encode(_in_child(self._decode, job, given, wanted))

        try:
            child = fork_bounded(run, bounds, (content, pixels))
        except OSError as error:
            return DecodeReply(Outcome.LOST, f"no process can be started to decode it: {error}")
        is_late = _is_late(child, job.cost.wait_seconds)
        # A child at its end is not changed by this; any other gets no more time.
        child.kill()
        end = child.wait()
        child.close()
        if is_late:
            return DecodeReply(Outcome.LOST, _LATE)
        return _reply_of(end, seconds)


def _in_child(
    decode: Decode, job: DecodeJob, content: bytes, wanted: NDArray[np.uint8]
) -> DecodeReply:
    """Decode into the memory of the pixels (`wanted`), and return the reply."""
    try:
        found = decode(content, job)
        if found.shape != wanted.shape or found.dtype != np.uint8:
            raise PictureError(_DAMAGED)
        wanted[:] = found
    except PictureError as error:
        return DecodeReply(Outcome.REFUSED, str(error)[:MOST_REASON])
    return DecodeReply(Outcome.DECODED)


def _shut_out() -> None:
    """Forbid new descriptors, processes, privileges and most system calls to this process."""
    for kind in (resource.RLIMIT_NOFILE, resource.RLIMIT_NPROC):
        resource.setrlimit(kind, (0, 0))
    forbid_calls()


def _is_late(child: BoundedChild, seconds: float) -> bool:
    """Wait for the end of the child's output. Return true if it took too long."""
    until = time.monotonic() + seconds
    poll = select.poll()
    poll.register(child.pipe, select.POLLIN)
    while (left := until - time.monotonic()) > 0:
        if poll.poll(1000 * left) and not child.read():
            return False
    return True


def _reply_of(end: ChildEnd, cpu_seconds: int) -> DecodeReply:
    """Return the reply for an ended child. Its answer is not trusted."""
    if len(end.answer) > MAX_ANSWER_BYTES:
        return DecodeReply(Outcome.REFUSED, _DAMAGED)
    if os.WIFSIGNALED(end.status):
        match os.WTERMSIG(end.status):
            case signal.SIGKILL if end.cpu_seconds < cpu_seconds:
                return DecodeReply(Outcome.LOST, _LOST)
            case signal.SIGKILL | signal.SIGXCPU | signal.SIGABRT:
                return DecodeReply(Outcome.REFUSED, _COSTLY)
            case _:
                return DecodeReply(Outcome.REFUSED, _DAMAGED)
    if os.WEXITSTATUS(end.status) != 0:
        return DecodeReply(Outcome.REFUSED, _DAMAGED)
    try:
        reply = msgspec.msgpack.decode(end.answer, type=DecodeReply)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return DecodeReply(Outcome.REFUSED, _DAMAGED)
    if reply.outcome is Outcome.DECODED:
        return DecodeReply(Outcome.DECODED)
    return DecodeReply(Outcome.REFUSED, reply.reason[:MOST_REASON])


def _load_decoders() -> None:
    """Load every decoder, by a picture of each format. Raises PillowMissing."""
    try:
        from PIL import Image, ImageOps  # noqa: F401
    except ImportError as error:
        raise PillowMissing from error
    Image.init()
    job = DecodeJob(1, 1, 1 << 20, 1)
    for name in FORMATS:
        # Pillow may be built without one of them.
        with suppress(PictureError, OSError, KeyError):
            file = io.BytesIO()
            Image.new("RGBA" if name in ("PNG", "WEBP") else "RGB", (1, 1)).save(file, name)
            decoded(file.getvalue(), job)


def _own_bytes() -> int:
    """Return this process's address space in bytes."""
    try:
        with open("/proc/self/statm", "rb") as counters:
            return int(counters.read().split()[0]) * resource.getpagesize()
    except OSError:
        return _UNKNOWN_BYTES


def _serve_nothing(connection: socket.socket, reason: str) -> None:
    """Answer every job with UNAVAILABLE."""
    reply = msgspec.msgpack.encode(DecodeReply(Outcome.UNAVAILABLE, reason))
    while True:
        data, handles, _, _ = socket.recv_fds(connection, MOST_MESSAGE_BYTES, 2)
        for handle in handles:
            os.close(handle)
        if not data:
            return
        connection.send(reply)


def _named(name: str) -> Decode:
    module, _, attribute = name.partition(":")
    found: Any = getattr(import_module(module), attribute)
    return cast(Decode, found)


def main(argv: list[str]) -> None:
    die_with_parent()
    # The daemon handles a signal to the whole group, and ends this process.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    connection = socket.socket(fileno=int(argv[0]))
    decode = _named(argv[1])
    try:
        _load_decoders()
    except PillowMissing as error:
        _serve_nothing(connection, str(error))
        return
    gc.collect()
    # Pages without writes are shared with every child.
    gc.freeze()
    DecodeWorker(connection, decode, _own_bytes()).run()


if __name__ == "__main__":
    main(sys.argv[1:])
