"""The engine's ends of the sockets to front workers, beside the one to the front that started it.

Owns a FrontLink for each worker, and which worker a request came from. Thread rule: add() from any
thread, split() from the engine's; `receive` and `gone` are called on the links' threads. Both
tables change and are copied under the lock; split() looks single keys up without it.
Invariants: what a request is answered goes to the worker that submitted it, its end to the front
too, and to the front first; a worker that is gone has its requests aborted, and gone(number,
requests) comes behind every end that the front was sent before.
"""

import asyncio
import socket
import threading
from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Any

from tasuki.engine import messages as m

from .control import TokensMade
from .front_link import FrontLink

NUMBER_BYTES = 4
"""A worker sends its number first, little-endian."""


def opened_door(path: str) -> socket.socket:
    """Where front workers connect from now on. path: of a Unix socket."""
    door = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    door.bind(path)
    door.listen()
    door.setblocking(False)
    return door


class WorkerLinks:
    def __init__(
        self,
        receive: Callable[[Sequence[Any]], None],
        to_front: Callable[[Sequence[Any]], None],
        gone: Callable[[int, tuple[m.RequestId, ...]], None],
    ) -> None:
        """receive: takes what workers send. to_front: sends to the front. gone: takes a worker's
        number and the requests that it leaves behind in the engine, once they are aborted."""
        self._receive = receive
        self._to_front = to_front
        self._gone = gone
        self._lock = threading.Lock()
        self._links: dict[int, FrontLink] = {}
        self._of: dict[m.RequestId, int] = {}

    def add(self, number: int, connection: socket.socket) -> None:
        """number: of a worker that never had a link before."""
        link = FrontLink(connection)
        with self._lock:
            self._links[number] = link
        link.start(lambda messages: self._take(number, messages), lambda reason: self._lose(number))

    async def let_in(self, door: socket.socket) -> None:
        """add() each worker that connects, until cancelled. door: from opened_door()."""
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
        """Send a delivery to whom it belongs: one frame each."""
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
        """Send what still waits, and end the links."""
        with self._lock:
            links = [*self._links.values()]
        for link in links:
            link.close()

    def _shared(self, tokens: m.TokensOut) -> list[tuple[int | None, m.TokensOut]]:
        """The same by worker; None: the front's."""
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
            # Before the engine has them: it may answer at once.
            with self._lock:
                self._of.update(dict.fromkeys(names, number))
        self._receive(messages)

    def _lose(self, number: int) -> None:
        with self._lock:
            left = tuple(request for request, owner in self._of.items() if owner == number)
        self._receive([m.Abort(request) for request in left])
        self._gone(number, left)
        # Last: close() waits for the links that are listed, and nothing is called behind it.
        with self._lock:
            link = self._links.pop(number)
        link.close_ended()
