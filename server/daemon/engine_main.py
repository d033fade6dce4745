"""`python -m tasuki.server.daemon.engine_main FD`: an engine's process, started by its front.

FD: of a socket whose other end the front has; what to build comes first over it
(EngineProcess.launch). Not for people: a daemon starts it, and it does not outlive that daemon.
"""

import os
import pickle
import signal
import socket
import sys
from collections.abc import Callable, Sequence

from tasuki.utils.os_threads import die_with_parent

JOB_HEADER_BYTES = 8
EngineJob = Callable[[socket.socket], int]
"""A process's main over its end of the link; can be pickled."""


def main(argv: Sequence[str]) -> int:
    # A signal to the whole group is for the front, which lets what is in flight end.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    die_with_parent()
    connection = socket.socket(fileno=int(argv[0]))
    job: EngineJob = pickle.loads(_received(connection))
    return job(connection)


def _received(connection: socket.socket) -> bytes:
    """What the front sends first; its parent alone has the other end, so it may be pickled."""
    length = int.from_bytes(_exactly(connection, JOB_HEADER_BYTES), "little")
    return _exactly(connection, length)


def _exactly(connection: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        part = connection.recv(count - len(data))
        if not part:
            # The front has gone before it had asked for anything.
            os._exit(1)
        data += part
    return data


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
