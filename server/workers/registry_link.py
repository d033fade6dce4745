"""A worker's end of the socket to the node's registry.

Thread rule: the worker's event loop. Invariants: an ask ends with its reply, typed, or with the
socket; an ask that its caller gives up leaves at once, and its reply is dropped; messages arrive in
the order in which they were sent, so an ask's number is higher than those before it; the end of the
socket is the end of the process, since the registry is the node.
"""

import asyncio
import itertools
import logging
import socket
from collections.abc import Callable, Sequence
from typing import Any

from tasuki.engine.apart.frame_protocol import FrameProtocol
from tasuki.server.errors import ServerError

from . import messages as w
from .frames import worker_frame, worker_frames
from .refusals import error_of

log = logging.getLogger(__name__)

_GONE = "this front has lost its node's registry; ask again"


class RegistryLink(FrameProtocol):
    def __init__(self, take: Callable[[Any], None], on_end: Callable[[], None]) -> None:
        """take: what comes unasked. on_end: the registry is gone."""
        super().__init__("the registry", worker_frames(), self._take_all, self._ended)
        self._take_unasked = take
        self._on_gone = on_end
        self._numbers = itertools.count(1)
        self._waiting: dict[int, tuple[asyncio.Future[Any], Callable[[Any], None] | None]] = {}
        self._closed = asyncio.Event()
        self._closes = False

    @classmethod
    async def over(
        cls, connection: socket.socket, take: Callable[[Any], None], on_end: Callable[[], None]
    ) -> "RegistryLink":
        loop = asyncio.get_running_loop()
        _, link = await loop.create_unix_connection(lambda: cls(take, on_end), sock=connection)
        return link

    def number(self) -> int:
        """Return the number of an ask, which must be sent before the next number is taken."""
        return next(self._numbers)

    @property
    def waiting(self) -> int:
        """Return how many asks wait for their reply."""
        return len(self._waiting)

    def notify(self, note: w.FromWorker) -> None:
        """Send a message for whose reply, if it has one, no caller waits."""
        self.write(worker_frame([note]))

    def ask(
        self, ask: w.Ask, at_once: Callable[[Any], None] | None = None
    ) -> "asyncio.Future[Any]":
        """Send the ask now, and return its reply to come; cancel that to give the ask up. at_once:
        called with the reply before any message behind it is taken, unless the ask was given up.

        Raises the errors of worker_frame(), and then nothing was asked. The future raises the
        refusal's error, and the error of `at_once`."""
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        if self._closed.is_set():
            future.set_exception(ServerError(_GONE))
            return future
        self.write(worker_frame([ask]))
        self._waiting[ask.call] = future, at_once
        future.add_done_callback(lambda _: self._waiting.pop(ask.call, None))
        return future

    async def end(self) -> None:
        """Send what still waits, and close; on_end is not called."""
        self._closes = True
        self.close()
        await self._closed.wait()

    def _take_all(self, messages: Sequence[Any]) -> None:
        for message in messages:
            self._taken(message)

    def _taken(self, message: Any) -> None:
        if not isinstance(message, w.Reply):
            self._take_unasked(message)
            return
        future, at_once = self._waiting.get(message.call, (None, None))
        if future is None or future.done():
            return
        if isinstance(message, w.Refused):
            future.set_exception(error_of(message))
            return
        try:
            if at_once is not None:
                at_once(message)
        except Exception as error:
            log.exception("what a reply was for failed")
            future.set_exception(ServerError(f"the engine could not be asked: {error!r}"))
            return
        future.set_result(message)

    def _ended(self, why: Exception | None) -> None:
        self._closed.set()
        for future, _ in [*self._waiting.values()]:
            if not future.done():
                future.set_exception(ServerError(_GONE))
        if not self._closes:
            self._on_gone()
