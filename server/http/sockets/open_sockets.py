"""The WebSockets of one server: how many a caller may hold open, and their common end.

Owns the count. One event loop's thread. Invariants: sockets take half of the server's connections
at most, and one of several keys an eighth, so that plain requests find a connection.
"""

import asyncio
from contextlib import AbstractContextManager

from aiohttp import web

from tasuki.server.auth.caller import Caller
from tasuki.server.auth.concurrency_caps import ConcurrencyCaps
from tasuki.server.errors import SocketLimit
from tasuki.server.http.connections import HttpConnections

_SHARE = 2
_SHARE_OF_KEY = 8


class OpenSockets:
    def __init__(self, connections: HttpConnections, most_connections: int) -> None:
        """connections: of the server, which are most_connections at most."""
        self.connections = connections
        self._caps = ConcurrencyCaps(
            *(SocketLimit, "WebSockets open"),
            *(max(1, most_connections // _SHARE_OF_KEY), max(1, most_connections // _SHARE)),
        )
        self.ending = asyncio.Event()
        """Of the sockets that open now. Once set, those without a response in progress close."""

    def held(self, caller: Caller) -> AbstractContextManager[None]:
        """One more, inside `with`. Raises SocketLimit."""
        return self._caps.held(caller)

    def leave(self) -> None:
        """The node has left the rotation, or come back: sockets that are open have had their last
        response, or the one in progress is it. Those that open from now on stay."""
        self.ending.set()
        self.ending = asyncio.Event()

    async def end(self, application: web.Application) -> None:
        """For `on_shutdown`."""
        self.ending.set()


OPEN_SOCKETS = web.AppKey("open_sockets", OpenSockets)
"""Of this application."""
