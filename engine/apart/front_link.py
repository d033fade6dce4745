"""The engine's end of the socket to a front in another process.

Owns the socket and one thread, which reads. Thread rule: send() from any thread, never waits and
never raises for what became of the front; `receive` and `on_end` are called on the link's thread.
Invariants: frames leave whole and in the order of send(); what waits for a front that does not read
is bounded, and a front with more than that is dead; on_end comes once, after the last receive.
"""

import logging
import os
import select
import socket
import threading
from collections.abc import Callable, Sequence
from typing import Any

from tasuki.utils.os_threads import name_this_thread

from .codec import BrokenFrame, FrameReader, frame_of

log = logging.getLogger(__name__)

LIMIT_BYTES = 64 << 20
"""Minutes of what an engine makes, and more than any snapshot of its cache."""
_READ_BYTES = 1 << 18
_LAST_WRITES_SECONDS = 1.0


class FrontLink:
    def __init__(self, connection: socket.socket, limit_bytes: int = LIMIT_BYTES) -> None:
        """limit_bytes: that may wait for the front to read, beside what the kernel holds."""
        connection.setblocking(False)
        self._socket = connection
        self._limit = limit_bytes
        self._lock = threading.Lock()
        self._waiting = bytearray()
        self._dead: str | None = None
        self._closing = False
        self._wakes: int | None = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._thread = threading.Thread(target=self._run, name="tasuki-link", daemon=True)
        self._receive: Callable[[Sequence[Any]], None]
        self._on_end: Callable[[str], None]

    def start(
        self, receive: Callable[[Sequence[Any]], None], on_end: Callable[[str], None]
    ) -> None:
        """receive: takes the messages of each frame. on_end(reason): the front is gone, or reads
        too little; not after close()."""
        self._receive, self._on_end = receive, on_end
        self._thread.start()

    def send(self, messages: Sequence[Any]) -> None:
        """As one frame. Raises what frame_of() raises."""
        frame = frame_of(messages)
        with self._lock:
            if self._dead is not None:
                return
            if self._waiting:
                self._waiting += frame
            else:
                sent = self._written(frame)
                if sent == len(frame):
                    return
                self._waiting += memoryview(frame)[sent:]
            if len(self._waiting) > self._limit:
                self._dead = f"{len(self._waiting)} bytes wait for a front that does not read"
                self._waiting.clear()
            self._wake()

    def close(self) -> None:
        """Send what still waits, within a second, and end the thread. Idempotent; not from the
        link's own thread."""
        with self._lock:
            self._closing = True
            self._wake()
        if self._thread.is_alive():
            self._thread.join(2 * _LAST_WRITES_SECONDS)
        self._socket.close()

    def close_ended(self) -> None:
        """As close(), once on_end was called; from any thread, that of on_end too. Idempotent, and
        somebody may call close() at the same time."""
        self._socket.close()
        with self._lock:
            ended, self._wakes = self._wakes, None
        if ended is not None:
            os.close(ended)

    def _written(self, data: bytes | bytearray | memoryview) -> int:
        """How much of it the kernel took. The lock is held."""
        try:
            return self._socket.send(data, socket.MSG_NOSIGNAL)
        except (BlockingIOError, InterruptedError):
            return 0
        except OSError as error:
            self._dead = f"the front is gone: {error}"
            self._waiting.clear()
            self._wake()
            return len(data)

    def _wake(self) -> None:
        """The lock is held, so that nobody closes what is written to."""
        if self._wakes is not None:
            os.eventfd_write(self._wakes, 1)

    def _run(self) -> None:
        name_this_thread()
        try:
            reason = self._exchange()
        except Exception as error:
            log.exception("the link to the front broke")
            reason = f"the link broke: {error!r}"
        with self._lock:
            self._dead = reason
            self._waiting.clear()
        if not self._closing:
            self._on_end(reason)

    def _exchange(self) -> str:
        """Until the link has ended; returns why."""
        wakes = self._wakes
        assert wakes is not None
        poll = select.poll()
        poll.register(wakes, select.POLLIN)
        reader = FrameReader()
        while True:
            with self._lock:
                if self._dead is not None:
                    return self._dead
                events = select.POLLIN | (select.POLLOUT if self._waiting else 0)
                if self._closing and not self._waiting:
                    return "closed"
            poll.register(self._socket, events)
            ready = dict(poll.poll(_LAST_WRITES_SECONDS * 1e3 if self._closing else None))
            if not ready:
                return "closed"
            if wakes in ready:
                os.eventfd_read(wakes)
            happened = ready.get(self._socket.fileno(), 0)
            if happened & select.POLLOUT:
                with self._lock:
                    del self._waiting[: self._written(self._waiting)]
            if happened & ~select.POLLOUT:
                try:
                    data = self._socket.recv(_READ_BYTES)
                except BlockingIOError:
                    continue
                except OSError as error:
                    return f"the front is gone: {error}"
                if not data:
                    return "the front is gone"
                try:
                    for messages in reader.take(data):
                        self._receive(messages)
                except BrokenFrame as error:
                    return f"the front sent what is no frame: {error}"
