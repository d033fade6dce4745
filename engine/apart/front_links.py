"""The engine's ends of sockets: to the API server, its starter, and to API server workers."""

import asyncio
import logging
import os
import select
import socket
import threading
from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Any

from tasuki.engine import messages as m
from tasuki.engine.messages.media import KnownBlocks
from tasuki.utils.signatures import EndNotice
from tasuki.utils.system import name_this_thread

from .control import TokensMade
from .frames import BrokenFrame, FrameReader, TakeMessages, frame_of
from .media_frames import ArrivedMedia

log = logging.getLogger(__name__)

LIMIT_BYTES = 64 << 20
"""Most bytes waiting for a slow API server: minutes of an engine's output, and more than any
snapshot of its cache."""
_READ_BYTES = 1 << 18
_LAST_WRITES_SECONDS = 1.0


class FrontLink:
    """The engine's end of the socket to an API server in another process.

    Owns the socket and one reading thread. Thread rule: send() from any thread; it never waits, and
    raises nothing if the API server is gone. `receive` and `on_end` are called on the link's
    thread. Invariants: frames leave whole and in the order of send(). Data waiting for an API
    server that does not read is bounded; beyond the bound the API server counts as dead. on_end is
    called once, after the last receive.
    """

    def __init__(
        self,
        connection: socket.socket,
        limit_bytes: int = LIMIT_BYTES,
        known: KnownBlocks | None = None,
    ) -> None:
        """limit_bytes: most bytes waiting for the API server to read, besides the kernel's buffer.
        known: blocks of media of all links; None: of this one alone."""
        connection.setblocking(False)
        self._socket = connection
        self._limit = limit_bytes
        self._lock = threading.Lock()
        self._waiting = bytearray()
        self._media = ArrivedMedia(known)
        self._dead: str | None = None
        self._closing = False
        self._wakes: int | None = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._thread = threading.Thread(target=self._run, name="tasuki-link", daemon=True)
        self._receive: TakeMessages
        self._on_end: EndNotice

    def start(self, receive: TakeMessages, on_end: EndNotice) -> None:
        """Start the thread. receive: called with the messages of each frame. on_end: called with
        the reason if the API server is gone, or reads too slowly; not called after close()."""
        self._receive, self._on_end = receive, on_end
        self._thread.start()

    def send(self, messages: Sequence[Any]) -> None:
        """Send the messages to the API server as one frame, or queue the part not sent yet. Drop
        them after the link's end. Too many waiting bytes end it. Raises as frame_of()."""
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
        """Send the waiting data, within a second, and end the thread. Idempotent; not to be called
        on the link's own thread."""
        with self._lock:
            self._closing = True
            self._wake()
        if self._thread.is_alive():
            self._thread.join(2 * _LAST_WRITES_SECONDS)
        self._socket.close()

    def close_ended(self) -> None:
        """Close the socket after on_end was called. Any thread, including the one of on_end.
        Idempotent; another thread may call close() at the same time."""
        self._socket.close()
        with self._lock:
            ended, self._wakes = self._wakes, None
        if ended is not None:
            os.close(ended)

    def _written(self, data: bytes | bytearray | memoryview) -> int:
        """Write data to the socket; return the number of bytes accepted by the kernel. REQUIRES:
        the lock is held."""
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
        """Wake the link's thread. REQUIRES: the lock is held, so the event is not closed
        meanwhile."""
        if self._wakes is not None:
            os.eventfd_write(self._wakes, 1)

    def _run(self) -> None:
        name_this_thread()
        try:
            reason = self._exchange()
        except Exception as error:
            log.exception("the link to the front broke")
            reason = f"the link broke: {error!r}"
        self._media.close()
        with self._lock:
            self._dead = reason
            self._waiting.clear()
        if not self._closing:
            self._on_end(reason)

    def _exchange(self) -> str:
        """Exchange data with the API server until the link has ended. Return the reason."""
        wakes = self._wakes
        assert wakes is not None
        poll = select.poll()
        poll.register(wakes, select.POLLIN)
        reader = FrameReader.of_requests(self._media)
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
                    data = self._media.receive(self._socket, _READ_BYTES)
                except BlockingIOError:
                    continue
                except OSError as error:
                    return f"the front is gone: {error}"
                if not data:
                    return "the front is gone"
                try:
                    self._take(reader, data)
                except BrokenFrame as error:
                    return f"the front sent what is no frame: {error}"

    def _take(self, reader: FrameReader, data: bytes) -> None:
        """Pass on the complete frames. Their media are not kept here. Raises BrokenFrame."""
        for messages in reader.take(data):
            self._receive(messages)


NUMBER_BYTES = 4
"""Bytes of a worker's number, sent first on its socket, little-endian."""


def opened_door(path: str) -> socket.socket:
    """Open the listening socket for API server workers. path: path of the Unix socket."""
    door = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    door.bind(path)
    door.listen()
    door.setblocking(False)
    return door


WorkerGone = Callable[[int, tuple[m.RequestId, ...]], None]
"""A function called with a lost worker's number and its requests left in the engine."""


class WorkerLinks:
    """The engine's ends of the sockets to API server workers. The API server process (the engine's
    starter) has its own link.

    Owns a FrontLink for each worker, and the worker of each request. Thread rule: add() from any
    thread, split() from the engine's; `receive` and `gone` are called on the links' threads. Both
    tables change and are copied under the lock; split() reads single keys without it. Invariants: a
    request's answer goes to its submitting worker. Its end also goes to the API server, and there
    first. The requests of a lost worker are aborted. gone(number, requests) comes after every end
    already sent to the API server.
    """

    def __init__(self, receive: TakeMessages, to_front: TakeMessages, gone: WorkerGone) -> None:
        """receive: called with workers' messages. to_front: sends messages to the API server. gone:
        called with a lost worker's number and its requests left in the engine, after they are
        aborted."""
        self._receive = receive
        self._to_front = to_front
        self._gone = gone
        self._known = KnownBlocks()
        self._lock = threading.Lock()
        self._links: dict[int, FrontLink] = {}
        self._of: dict[m.RequestId, int] = {}

    def add(self, number: int, connection: socket.socket) -> None:
        """Add a worker's link. number: the worker's number, never used by an earlier link."""
        link = FrontLink(connection, known=self._known)
        with self._lock:
            self._links[number] = link
        link.start(lambda messages: self._take(number, messages), lambda reason: self._lose(number))

    async def let_in(self, door: socket.socket) -> None:
        """Add a link for each connecting worker, until cancelled; close a connection ended before
        its number arrived. door: the listening socket from opened_door()."""
        loop = asyncio.get_running_loop()
        with door:
            while True:
                connection, _ = await loop.sock_accept(door)
                try:
                    number = await loop.sock_recv(connection, NUMBER_BYTES)
                except OSError:
                    number = b""
                if len(number) == NUMBER_BYTES:
                    self.add(int.from_bytes(number, "little"), connection)
                else:
                    # It has ended meanwhile, and the door stays open for the next.
                    connection.close()

    def split(self, messages: Sequence[Any]) -> None:
        """Send each of the engine's messages to its recipient, a worker or the API server. Each
        recipient gets one frame. Finished and Rejected of a worker's request go to both. Messages
        for a lost worker are dropped."""
        if not self._of:
            self._to_front(messages)
            return
        front: list[Any] = []
        shares: dict[int, list[Any]] = {}
        made = 0
        ended: list[m.RequestId] = []
        for message in messages:
            match message:
                case m.TokenOut(request_id=request):
                    number = self._of.get(request)
                    if number is None:
                        front.append(message)
                    else:
                        made += 1
                        shares.setdefault(number, []).append(message)
                case m.TokensOut():
                    for number, tokens in self._shared(message):
                        if number is None:
                            front.append(tokens)
                        else:
                            made += len(tokens)
                            shares.setdefault(number, []).append(tokens)
                case m.PromptScored(request_id=request) if request in self._of:
                    shares.setdefault(self._of[request], []).append(message)
                case m.Finished(request_id=request) | m.Rejected(request_id=request):
                    front.append(message)
                    if request in self._of:
                        ended.append(request)
                        shares.setdefault(self._of[request], []).append(message)
                case _:
                    front.append(message)
        if made:
            front.append(TokensMade(made))
        if front:
            self._to_front(front)
        if ended:
            with self._lock:
                for request in ended:
                    self._of.pop(request, None)
        for number, share in shares.items():
            link = self._links.get(number)
            if link is not None:
                link.send(share)

    def close(self) -> None:
        """Send the waiting data of all workers, and end their links."""
        with self._lock:
            links = [*self._links.values()]
        for link in links:
            link.close()

    def _shared(self, tokens: m.TokensOut) -> list[tuple[int | None, m.TokensOut]]:
        """Split the tokens by the worker of their requests: (worker number, tokens) pairs. None:
        requests of the API server itself."""
        owners = [self._of.get(request) for request in tokens.request_ids]
        if len(set(owners)) == 1:
            return [(owners[0], tokens)]
        places = sorted(range(len(owners)), key=lambda place: owners[place] or 0)
        return [
            (owner, tokens.at([*mine]))
            for owner, mine in groupby(places, key=lambda place: owners[place])
        ]

    def _take(self, number: int, messages: Sequence[Any]) -> None:
        names = [
            name
            for message in messages
            if isinstance(message, m.Submit)
            for name in message.answer_ids
        ]
        if names:
            # Do this before the engine has the requests, because it may answer at once.
            with self._lock:
                self._of.update(dict.fromkeys(names, number))
        self._receive(messages)

    def _lose(self, number: int) -> None:
        with self._lock:
            left = tuple(request for request, owner in self._of.items() if owner == number)
        self._receive([m.Abort(request) for request in left])
        self._gone(number, left)
        # Do this last: close() waits for the listed links, and nothing is called after it.
        with self._lock:
            link = self._links.pop(number)
        link.close_ended()
