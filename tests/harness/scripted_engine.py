"""Main functions of engine processes with one scripted behaviour each, for
EngineProcess.launch()."""

import socket
import time
from pathlib import Path

from tasuki.engine import messages as m
from tasuki.engine.apart import control as c
from tasuki.engine.apart.frames import FrameReader, frame_of
from tasuki.server.daemon.engine_process import LAST_SECONDS

STANDS = c.EngineStands(4096, 64, "")
LATE = 600.0


def die(connection: socket.socket) -> int:
    """Exit before it reports readiness."""
    return 3


def refuse(connection: socket.socket) -> int:
    connection.sendall(frame_of([c.StartFailed("arena_mib 1 is too little: give more")]))
    return 1


def babble(connection: socket.socket) -> int:
    """Report readiness, then send bytes other than a frame, and keep running."""
    connection.sendall(frame_of([STANDS]) + b"\x01\x00\x00\x00\xff")
    time.sleep(LATE)
    return 0


def linger(mark: Path, connection: socket.socket) -> int:
    """Report readiness. Close the connection when the API server closes it or requests the end.
    Write the file `mark` later: an API server in a hurry would kill the process before."""
    connection.sendall(frame_of([STANDS]))
    connection.recv(1 << 16)
    connection.close()
    time.sleep(2 * LAST_SECONDS)
    mark.touch()
    return 0


def repeat(connection: socket.socket) -> int:
    """Report readiness. Reject each Submit, with the trace header received before it as the
    text."""
    connection.sendall(frame_of([STANDS]))
    reader, header = FrameReader(), ""
    while True:
        for messages in reader.take(connection.recv(1 << 16)):
            for message in messages:
                match message:
                    case c.RequestTraced(_, header):
                        pass
                    case m.Submit(request_id):
                        error = m.RequestError(m.ErrorKind.INVALID, header)
                        connection.sendall(frame_of([m.Rejected(request_id, error)]))
                    case c.EndEngine():
                        return 0
