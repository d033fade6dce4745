"""Whether the leader still reads what this rank sends it: one that stands still does not, and what
was sent lies unread in the socket.

Owns a handle of the leader's process. Thread rule: one thread ticks; plans_may_come() from any.
Invariant: a gap of this rank's own does not count as the leader's (Silence).
"""

import fcntl
import os
import signal
import socket
import struct
import termios
import time
from collections.abc import Callable
from contextlib import suppress

from tasuki.transfer.liveness.silence import Silence

from .messages import START_SECONDS

BEATS_A_TIMEOUT = 10
_LOOKS = 5
"""At the socket, before what lies there counts as unread: some may just have been sent."""
_LOOK_SECONDS = 0.001
_CREDENTIALS = struct.Struct("iII")
_COUNT = struct.Struct("i")


class LeaderWatch:
    def __init__(
        self,
        connection: socket.socket,
        timeout: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """connection: of a pair that the leader made. timeout: seconds for which a leader that
        computes may read nothing; one that still loads may for START_SECONDS, at least."""
        self._socket = connection
        self._timeout = timeout
        self._clock = clock
        self.period = timeout / BEATS_A_TIMEOUT
        self._silence = Silence(max(timeout, START_SECONDS), clock(), self.period)
        found = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        self.pid: int = _CREDENTIALS.unpack(found)[0]
        self._handle = os.pidfd_open(self.pid)

    def plans_may_come(self) -> None:
        """The leader has its weights, and all ranks have met."""
        self._silence = Silence(self._timeout, self._clock(), self.period)

    def lost(self) -> float | None:
        """The seconds for which it has read nothing, once that is too long. To be called once a
        period, before a beat is sent."""
        silence, now = self._silence, self._clock()
        if self._has_read():
            silence.received(now)
        return silence.limit if silence.tick(now) else None

    def kill(self) -> None:
        """SIGKILL, also where it stands still: the system ends its followers with it, and whoever
        started it sees its end."""
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._handle, signal.SIGKILL)

    def close(self) -> None:
        os.close(self._handle)

    def _has_read(self) -> bool:
        for look in range(_LOOKS):
            if look:
                time.sleep(_LOOK_SECONDS)
            if not _unread(self._socket):
                return True
        return False


def _unread(connection: socket.socket) -> int:
    """Bytes, as the system accounts for them, that the other end has not taken."""
    found = fcntl.ioctl(connection, termios.TIOCOUTQ, bytes(_COUNT.size))
    return int(_COUNT.unpack(found)[0])
