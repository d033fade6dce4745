"""WebSockets: the number of open ones, and one client's texts and events.

OpenSockets owns the count. One event loop's thread. Invariants: sockets take at most half of the
server's connections. One key of several takes at most an eighth. So plain requests find a
connection.

TextSocket owns the connection after its upgrade, and the count of an incomplete text's bytes. One
event loop's thread. Invariants: nothing is decompressed. An incomplete text counts against its
caller. A slow client is waited for. A client without answers to pings is cut off.
"""

import asyncio
from collections.abc import Iterable
from contextlib import AbstractContextManager

from aiohttp import WSCloseCode, WSMsgType, web

from tasuki.server.auth.callers import Caller
from tasuki.server.auth.limits import ConcurrencyCaps, Hold
from tasuki.server.errors import ServerError, SocketLimit

from .bounded_reading import HttpConnections
from .errors import HttpRefusal
from .headers import add_header

_SHARE = 2
_SHARE_OF_KEY = 8


class OpenSockets:
    def __init__(self, connections: HttpConnections, most_connections: int) -> None:
        """Set up the count. connections: the server's connections. most_connections: their largest
        number."""
        self.connections = connections
        self._caps = ConcurrencyCaps(
            *(SocketLimit, "WebSockets open"),
            *(max(1, most_connections // _SHARE_OF_KEY), max(1, most_connections // _SHARE)),
        )
        self.ending = asyncio.Event()
        """Event set when the present sockets are to close, each after its response in progress."""

    def held(self, caller: Caller) -> AbstractContextManager[None]:
        """Count one more open socket inside `with`. Raises SocketLimit."""
        return self._caps.held(caller)

    def leave(self) -> None:
        """Close the open sockets, each after its response in progress. The node has left load
        balancers' rotation or returned to it. Later sockets stay open."""
        self.ending.set()
        self.ending = asyncio.Event()

    async def end(self, application: web.Application) -> None:
        """Close the open sockets at the server's end. For `on_shutdown`."""
        self.ending.set()


OPEN_SOCKETS = web.AppKey("open_sockets", OpenSockets)
"""Key of the application's count of open sockets."""


_PING_SECONDS = 40.0
"""Seconds of silence before a ping. The client has half of this time to answer. Proxies end
connections after 60 s."""
_CLOSE_SECONDS = 1.0
_HIGH_WATER_BYTES = 1 << 14
"""Limit in bytes of a socket's write buffer, as in EventStream."""
_FRAMES_BYTES = 1 << 16
"""Bytes allowed for the frame headers of a text of the largest size."""
_LARGEST_TEXT_BYTES = 2 << 20
"""Largest text in bytes. The loop unmasks and copies a text in one callback: 4 ms at this size.
Texts completed together are handled in one round. A text of this size has as many characters as a
context of half a million tokens."""
_SEGMENT_BYTES = 64
"""Bytes of memory of the objects for one read, in addition to its data, until its frame is
whole."""
_TEXTS = (WSMsgType.TEXT, WSMsgType.BINARY)
_BEATS = (WSMsgType.PING, WSMsgType.PONG)


class TextSocket:
    def __init__(self, request: web.Request, sockets: OpenSockets, inbox: Hold) -> None:
        """Set up the socket. inbox: counts the bytes of an incomplete text."""
        self._request = request
        self._sockets = sockets
        self._inbox = inbox
        self.refused: asyncio.Future[ServerError | HttpRefusal] = (
            asyncio.get_running_loop().create_future()
        )
        """Future of the error to end the reading of an incoming text."""
        self._came = 0
        """Number of bytes received since the last text."""
        self.response = web.WebSocketResponse(
            timeout=_CLOSE_SECONDS,
            heartbeat=_PING_SECONDS,
            # aiohttp's receive() would answer all pings of a read without waiting.
            autoping=False,
            compress=False,
            # aiohttp must reject nothing itself: the client could not read the reason.
            max_msg_size=0,
            writer_limit=_HIGH_WATER_BYTES,
            decode_text=False,
        )

    async def open(self) -> None:
        """Open the socket and answer the upgrade. Call it once, before all else; call cut()
        afterwards. Raises HttpRefusal."""
        request = self._request
        if not self.response.can_prepare(request):
            add_header(request, "Upgrade", "websocket")
            raise HttpRefusal(
                426, "no_websocket", f"GET {request.path} opens a WebSocket: upgrade, or use POST"
            )
        await self.response.prepare(request)
        assert request.transport is not None
        request.transport.set_write_buffer_limits(_HIGH_WATER_BYTES)
        self._sockets.connections.count_received(request.transport, self._wanted)

    async def text(self) -> bytearray | None:
        """Wait for the client's next text or binary message and return its bytes; None: the socket
        has ended. Only one task may wait. Raises ConnectionError if the client disconnects during a
        pong."""
        while (message := await self.response.receive()).type in _BEATS:
            if message.type is WSMsgType.PING:
                await self.response.pong(message.data)
            # One read brings tens of thousands of messages: let others run between them.
            await asyncio.sleep(0)
        # The next text's start, some KiB, may have arrived with it.
        self._came = 0
        self._inbox.resize(0)
        return bytearray(message.data) if message.type in _TEXTS else None

    async def send(self, texts: Iterable[bytes]) -> None:
        """Send each text as one message. Waits for a slow client. Raises ConnectionError after a
        disconnect."""
        for text in texts:
            await self.response.send_frame(text, WSMsgType.TEXT)

    async def sent(self) -> None:
        """Return once nearly all sent bytes have left."""
        await self._request.writer.drain()

    async def close(self, code: WSCloseCode, reason: str) -> None:
        """Send a close frame, and wait at most 2 * _CLOSE_SECONDS for the client's. reason: text of
        123 bytes at most."""
        try:
            async with asyncio.timeout(2 * _CLOSE_SECONDS):
                await self.response.close(code=code, message=reason.encode())
        except TimeoutError:
            pass

    def cut(self) -> None:
        """End the connection, even with unsent bytes, because a client without reads would never
        take them."""
        transport = self._request.transport
        if isinstance(transport, asyncio.WriteTransport):
            if transport.get_write_buffer_size():
                transport.abort()
            else:
                transport.close()

    def _wanted(self, received: int) -> bool:
        """Count received bytes of an incoming text. Return False after a refusal: later bytes are
        dropped, and the client is sent the cause."""
        if self.refused.done():
            return False
        most = min(self._request.client_max_size, _LARGEST_TEXT_BYTES)
        self._came += received
        try:
            self._inbox.grow(received + _SEGMENT_BYTES)
        except ServerError as error:
            self.refused.set_result(error)
        else:
            if self._came > most + _FRAMES_BYTES:
                refusal = HttpRefusal(413, "body_too_large", f"send at most {most} bytes at once")
                self.refused.set_result(refusal)
        return not self.refused.done()
