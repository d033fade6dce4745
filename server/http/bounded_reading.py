"""Bounds on reading from an HTTP server's clients: connections, headers and bodies.

HttpConnections limits the number of connections, and the time for sending a header. It owns the
table of open connections. It finds the end of a header and reads nothing else. Invariants: a
connection over a cap is answered 503 and closed before it is read. A connection without a whole
header HEADER_SECONDS after its acceptance is closed.

read_body() owns the deadline of a body. Invariants: before read_body(), no byte of a body is read,
and the client gets no permission to send it (100 Continue). A body is never decompressed. Each byte
read is counted in its request's hold. An unread body is drained within bounds and ends its
connection.

BodyTurns owns the queue of readers of large bodies. Invariants: a round of the event loop begins at
most one turn, for one read. Turns begin in the order of the calls. A cancelled reader takes no
turn. Nothing runs while the queue is empty.

One event loop's thread.
"""

import asyncio
from collections import Counter, deque
from collections.abc import Callable

from aiohttp import web
from aiohttp.typedefs import Handler

from tasuki.server.auth.limits import Hold

from .errors import HttpRefusal

HEADER_SECONDS = 10.0
_END_OF_HEADER = b"\r\n\r\n"
_FULL_BODY = (
    b'{"error": {"message": "too many connections: ask again in a moment, or close some", '
    b'"type": "service_unavailable_error", "param": null, "code": "busy"}}'
)
_FULL = (
    b"HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\nRetry-After: 1\r\n"
    b"Connection: close\r\nContent-Length: %d\r\n\r\n%s" % (len(_FULL_BODY), _FULL_BODY)
)


MakeProtocol = Callable[[], asyncio.Protocol]
"""A function to make the protocol of a new connection."""

Wanted = Callable[[int], bool]
"""A function called with the number of bytes just read. Returns True if these bytes are to be
parsed, False to drop them."""


class HttpConnections:
    def __init__(
        self, most: int, most_strangers: int, header_seconds: float = HEADER_SECONDS
    ) -> None:
        """Set up the limits. most: largest number of connections. most_strangers: largest number of
        connections from one address without an admitted request. header_seconds: time to send a
        whole header."""
        self._most = most
        self._most_strangers = most_strangers
        self.header_seconds = header_seconds
        self._open: dict[asyncio.BaseTransport, _Connection] = {}
        self._strangers: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._open)

    def bounded(self, make: MakeProtocol) -> MakeProtocol:
        """Return a protocol factory for `create_server`. It bounds the protocols made by `make`."""
        return lambda: _Connection(self, make())

    def let_in(self, transport: asyncio.BaseTransport | None) -> None:
        """Stop counting the connection among those without an admitted request, because one of its
        requests was admitted."""
        connection = None if transport is None else self._open.get(transport)
        if connection is not None and connection.stranger_at is not None:
            self._forget_stranger(connection)

    def count_received(self, transport: asyncio.BaseTransport | None, wanted: Wanted) -> None:
        """Call `wanted` with the size of each later read of the connection, before it is parsed. If
        `wanted` returns False, drop the bytes."""
        connection = None if transport is None else self._open.get(transport)
        if connection is not None:
            connection.wanted = wanted

    def enter(self, transport: asyncio.BaseTransport, connection: "_Connection") -> bool:
        """Count a new connection and return True. Return False if the number exceeds a limit."""
        peer = transport.get_extra_info("peername")
        address = str(peer[0]) if isinstance(peer, tuple) and peer else "unknown"
        if len(self._open) >= self._most or self._strangers[address] >= self._most_strangers:
            return False
        self._open[transport] = connection
        self._strangers[address] += 1
        connection.stranger_at = address
        return True

    def leave(self, transport: asyncio.BaseTransport, connection: "_Connection") -> None:
        if self._open.pop(transport, None) is not None and connection.stranger_at is not None:
            self._forget_stranger(connection)

    def _forget_stranger(self, connection: "_Connection") -> None:
        address = connection.stranger_at
        connection.stranger_at = None
        if address is not None:
            self._strangers[address] -= 1
            if not self._strangers[address]:
                del self._strangers[address]


class _Connection(asyncio.Protocol):
    """A connection passing all data on to the server's own protocol. stranger_at: address charged
    with the connection until it has an admitted request; None afterwards, or if it was never
    charged."""

    def __init__(self, connections: HttpConnections, inner: asyncio.Protocol) -> None:
        self._connections = connections
        self._inner = inner
        self._transport: asyncio.BaseTransport | None = None
        self._deadline: asyncio.TimerHandle | None = None
        self._tail = b""
        self.stranger_at: str | None = None
        self.wanted: Wanted | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        if not self._connections.enter(transport, self):
            transport.write(_FULL)
            transport.close()
            return
        self._transport = transport
        self._deadline = asyncio.get_running_loop().call_later(
            self._connections.header_seconds, transport.abort
        )
        self._inner.connection_made(transport)

    def data_received(self, data: bytes) -> None:
        if self._transport is None:
            return
        if self._deadline is not None:
            seen = self._tail + data
            self._tail = seen[1 - len(_END_OF_HEADER) :]
            if _END_OF_HEADER in seen:
                self._deadline.cancel()
                self._deadline = None
        if self.wanted is not None and not self.wanted(len(data)):
            return
        self._inner.data_received(data)

    def eof_received(self) -> bool | None:
        return None if self._transport is None else self._inner.eof_received()

    def pause_writing(self) -> None:
        if self._transport is not None:
            self._inner.pause_writing()

    def resume_writing(self) -> None:
        if self._transport is not None:
            self._inner.resume_writing()

    def connection_lost(self, error: Exception | None) -> None:
        if self._transport is None:
            return
        if self._deadline is not None:
            self._deadline.cancel()
        self._connections.leave(self._transport, self)
        self._inner.connection_lost(error)


class BodyTurns:
    def __init__(self) -> None:
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._scheduled = False

    async def turn(self) -> None:
        """Wait for this caller's turn to read a part of a large body."""
        loop = asyncio.get_running_loop()
        mine = loop.create_future()
        self._waiting.append(mine)
        if not self._scheduled:
            self._scheduled = True
            loop.call_soon(self._next)
        await mine

    def _next(self) -> None:
        while self._waiting:
            first = self._waiting.popleft()
            if not first.done():
                first.set_result(None)
                break
        self._scheduled = bool(self._waiting)
        if self._scheduled:
            asyncio.get_running_loop().call_soon(self._next)


# Limit for a body: the first, plus the time of its bytes at the second.
_GRACE_SECONDS = 30.0
_BYTES_PER_SECOND = 1 << 16

# Some clients send a short body before they read the answer. So they see the rejection.
_SKIMMED_BYTES = 1 << 18
_SKIM_SECONDS = 1.0
_CALLER_SKIM_SECONDS = 10.0

_LARGE_BYTES = 1 << 18
"""Size of a large body in bytes. A larger body takes turns with others."""

BODY_TURNS = web.AppKey("body_turns", BodyTurns)
"""Key of the application's queue of readers of large bodies."""

_MAY_SEND = web.RequestKey("may_send", bool)


def _too_large(size: int) -> HttpRefusal:
    fault = f"the body has more than {size >> 20} MiB: see --max-message-mib"
    return HttpRefusal(413, "body_too_large", fault)


async def read_body(request: web.Request, hold: Hold) -> bytearray:
    """Return the request's body, and count its bytes in the hold.

    Raises HttpRefusal if the body arrives too slowly or is too large. Raises Busy if the requests
    of this caller, or of all callers, hold too much memory.
    """
    size = request.client_max_size
    announced = request.content_length or 0
    if announced > size:
        raise _too_large(size)
    # Reject a too large body now, before the client sends it.
    hold.check(announced)
    if _waits_for_leave(request):
        await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        # These bytes are not part of the answer, and the answer has not begun.
        request.writer.output_size = 0
    body = bytearray()
    begun = asyncio.get_running_loop().time()
    try:
        async with asyncio.timeout_at(begun + _GRACE_SECONDS) as deadline:
            async for piece in request.content.iter_any():
                received = len(body) + len(piece)
                if received > size:
                    raise _too_large(size)
                hold.resize(received)
                # The buffer grows by an eighth at a time, and a large one is moved without a copy.
                body += piece
                deadline.reschedule(begun + _GRACE_SECONDS + received / _BYTES_PER_SECOND)
                if received > _LARGE_BYTES:
                    await request.app[BODY_TURNS].turn()
    except BaseException as error:
        received = len(body)
        # The error keeps this frame alive, perhaps until the next collection.
        body.clear()
        if not isinstance(error, TimeoutError):
            raise
        request[_MAY_SEND] = False
        raise HttpRefusal(
            408, "slow_body", f"the body stopped after {received} bytes: send it faster"
        ) from error
    return body


async def leave_later(request: web.Request) -> None:
    """Do nothing, as a route's `expect_handler`. read_body() later sends 100 Continue.
    refuse_expectations() rejects other expectations."""


@web.middleware
async def refuse_expectations(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Reject a request with an expectation other than 100-continue. A middleware."""
    expected = request.headers.get("Expect", "")
    if expected and not _waits_for_leave(request):
        raise HttpRefusal(
            417,
            "unknown_expectation",
            f"Expect {expected:.40}: send the body without Expect, or with 100-continue",
        )
    return await handler(request)


@web.middleware
async def refuse_encodings(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Reject a request with a compressed body, because it could expand to any size. A
    middleware."""
    encoding = request.headers.get("Content-Encoding", "identity")
    if encoding.strip().lower() not in ("", "identity"):
        raise HttpRefusal(
            415, "unsupported_encoding", f"Content-Encoding {encoding:.40}: send the body plain"
        )
    return await handler(request)


@web.middleware
async def end_with_unread_bodies(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Close the connection after the answer if the request's body was not read and no answer has
    begun. The outermost middleware."""
    response = await handler(request)
    if not request.content.is_eof() and not response.prepared:
        response.force_close()
        await response.prepare(request)
        await response.write_eof()
        if not _waits_for_leave(request):
            await _skim(request)
    return response


def may_send(request: web.Request) -> None:
    """Mark the caller of the request as admitted. More of a too large body is then read before the
    connection is cut."""
    request[_MAY_SEND] = True


def _waits_for_leave(request: web.Request) -> bool:
    return request.headers.get("Expect", "").lower() == "100-continue"


async def _skim(request: web.Request) -> None:
    most, seconds = _SKIMMED_BYTES, _SKIM_SECONDS
    if request.get(_MAY_SEND):
        most, seconds = 2 * request.client_max_size, _CALLER_SKIM_SECONDS
    skimmed = 0
    try:
        async with asyncio.timeout(seconds):
            while skimmed < most and not request.content.is_eof():
                skimmed += len(await request.content.readany())
                if skimmed > _LARGE_BYTES:
                    await request.app[BODY_TURNS].turn()
    except (TimeoutError, web.RequestPayloadError):
        return
