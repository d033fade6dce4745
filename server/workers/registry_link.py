"""A worker's end of the socket to the node's registry.

Thread rule: the worker's event loop. Invariants: an ask ends with its reply, typed; what is asked
and noted arrives in that order; the end of the socket is the end of the process, since the registry
is the node.
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
        """Of an ask to come."""
        return next(self._numbers)

    def notify(self, note: w.Note) -> None:
        self.write(worker_frame([note]))

    async def ask(self, ask: w.Ask, at_once: Callable[[Any], None] | None = None) -> Any:
        """The reply. at_once: called with it before anything that came behind it is taken, unless
        the caller was cancelled before it came. Raises what it refuses with, and what `at_once`
        raises."""
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting[ask.call] = future, at_once
        try:
            self.write(worker_frame([ask]))
            return await future
        finally:
            self._waiting.pop(ask.call, None)

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
        if not self._closes:
            self._on_gone()
