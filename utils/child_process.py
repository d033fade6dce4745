"""Child processes of a daemon. They never outlive it, and each receives its job (its main function)
over a socket.

The child's side is `python -m MODULE FD`: the module's main calls run_job(). The child reads one
pickle, from its parent. Only the parent has the socket's other end.
"""

import asyncio
import logging
import os
import pickle
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import NoReturn

from .system import die_with_parent

_HEADER_BYTES = 8
_STDERR = 2

Job = Callable[[socket.socket], int]
"""The main function of a child process, called with its end of the socket. It can be pickled.
Returns the exit status."""


async def start_child(
    module: str, job: Job
) -> tuple[asyncio.subprocess.Process, socket.socket, bytes]:
    """Start a child process running `module`. Return the process, the parent's end of the socket,
    and the pickled job to write there first. REQUIRES: the calling thread lives as long as the
    process."""
    ours, theirs = socket.socketpair()
    with theirs:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", module, str(theirs.fileno())),
            pass_fds=[theirs.fileno()],
            stdin=asyncio.subprocess.DEVNULL,
            # Only the front writes the daemon's one line on stdout.
            stdout=_STDERR,
        )
    return process, ours, _posted(job)


def start_child_at_once(module: str, job: Job) -> "tuple[subprocess.Popen[bytes], socket.socket]":
    """Start a child process outside an event loop, as start_child() does. Return the process and
    the parent's end of the socket, after sending the job. REQUIRES: the calling thread lives as
    long as the process; the pickled job has at most a few kilobytes and fits the socket's
    buffer."""
    ours, theirs = socket.socketpair()
    with theirs:
        process = subprocess.Popen(
            [sys.executable, "-m", module, str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=_STDERR,
        )
    ours.sendall(_posted(job))
    return process, ours


def _posted(job: Job) -> bytes:
    data = pickle.dumps(job)
    return len(data).to_bytes(_HEADER_BYTES, "little") + data


def run_job(argv: Sequence[str]) -> int:
    """Receive the job of this child process and run it to its end. Return its exit status. argv:
    file descriptor of the socket."""
    # A signal to the whole group is for the parent: it lets work in flight end.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    die_with_parent()
    connection = socket.socket(fileno=int(argv[0]))
    job: Job = pickle.loads(_received(connection))
    return job(connection)


def end_after(status: int) -> NoReturn:
    """End this process immediately with `status`, after flushing the log and the output. Call it
    after the process's job has ended in order.

    The interpreter's own end frees all imported objects one by one. This takes up to a second, and
    a node at SIGTERM would wait for it.
    """
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(status)


def _received(connection: socket.socket) -> bytes:
    length = int.from_bytes(_exactly(connection, _HEADER_BYTES), "little")
    return _exactly(connection, length)


def _exactly(connection: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        part = connection.recv(count - len(data))
        if not part:
            # The parent has gone before it asked for anything.
            os._exit(1)
        data += part
    return data
