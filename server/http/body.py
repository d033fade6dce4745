"""Reads a request's body within bounds of size and time, and closes connections with unread bodies.

Owns the deadline of a body. One event loop's thread. Invariants: no byte of a body is read before
read_body(), nor is the client given leave to send it (100 Continue); a body is never decompressed;
each byte that was read is counted in its request's hold; a round of the event loop reads one piece
of large bodies at most; an unread body is drained within bounds and ends its connection.

BodyTurns: Turns of the readers of large bodies: a round of the event loop reads one piece. Owns the
readers in line. One event loop's thread. Invariants: one round of the loop begins one turn at most;
turns begin in the order of asking; a reader that left takes no turn; nothing runs without readers
in line.
"""

import asyncio
from collections import deque

from aiohttp import web
from aiohttp.typedefs import Handler

from tasuki.server.auth.limits import Hold

from .errors import HttpRefusal


class BodyTurns:
    def __init__(self) -> None:
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._scheduled = False

    async def turn(self) -> None:
        """Return when it is this caller's turn."""
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


# A body must end within the first, plus the time that its bytes take at the second.
_GRACE_SECONDS = 30.0
_BYTES_PER_SECOND = 1 << 16

# Clients that send a short body before they read the answer then see the refusal.
_SKIMMED_BYTES = 1 << 18
_SKIM_SECONDS = 1.0
_CALLER_SKIM_SECONDS = 10.0

_LARGE_BYTES = 1 << 18
"""Behind so much of it a body takes turns with others."""

BODY_TURNS = web.AppKey("body_turns", BodyTurns)
"""Of all large bodies that this application reads."""

_MAY_SEND = web.RequestKey("may_send", bool)


async def read_body(request: web.Request, hold: Hold) -> bytearray:
    """Return the body, and count its bytes in the hold.

    Raises HttpRefusal where the body comes too slowly, HTTPRequestEntityTooLarge, and Busy where
    the requests of this caller, or of all callers, hold too much memory.
    """
    size = request.client_max_size
    announced = request.content_length or 0
    if announced > size:
        raise web.HTTPRequestEntityTooLarge(max_size=size, actual_size=announced)
    # A body that does not fit now is refused before the client sends it.
    hold.check(announced)
    if _waits_for_leave(request):
        await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        # It is no part of the answer, which has yet to begin.
        request.writer.output_size = 0
    body = bytearray()
    begun = asyncio.get_running_loop().time()
    try:
        async with asyncio.timeout_at(begun + _GRACE_SECONDS) as deadline:
            async for piece in request.content.iter_any():
                received = len(body) + len(piece)
                if received > size:
                    raise web.HTTPRequestEntityTooLarge(max_size=size, actual_size=received)
                hold.resize(received)
                # It grows by an eighth at a time, and a large one is moved without a copy.
                body += piece
                deadline.reschedule(begun + _GRACE_SECONDS + received / _BYTES_PER_SECOND)
                if received > _LARGE_BYTES:
                    await request.app[BODY_TURNS].turn()
    except BaseException as error:
        received = len(body)
        # The error keeps this frame, perhaps until the next collection.
        body.clear()
        if not isinstance(error, TimeoutError):
            raise
        request[_MAY_SEND] = False
        raise HttpRefusal(
            408, "slow_body", f"the body stopped after {received} bytes: send it faster"
        ) from error
    return body


async def leave_later(request: web.Request) -> None:
    """For a route's `expect_handler`: read_body() gives the leave to send the body, and
    refuse_expectations() refuses what else is expected, neither does the route."""


@web.middleware
async def refuse_expectations(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Middleware: what a client expects beside the leave to send its body, nobody does."""
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
    """Middleware: a compressed body could expand to any size."""
    encoding = request.headers.get("Content-Encoding", "identity")
    if encoding.strip().lower() not in ("", "identity"):
        raise HttpRefusal(
            415, "unsupported_encoding", f"Content-Encoding {encoding:.40}: send the body plain"
        )
    return await handler(request)


@web.middleware
async def end_with_unread_bodies(request: web.Request, handler: Handler) -> web.StreamResponse:
    """The outermost middleware: after the answer, closes a connection whose body was not read."""
    response = await handler(request)
    if not request.content.is_eof() and not response.prepared:
        response.force_close()
        await response.prepare(request)
        await response.write_eof()
        if not _waits_for_leave(request):
            await _skim(request)
    return response


def may_send(request: web.Request) -> None:
    """Mark the caller as admitted: more of a body that is too large is read before the cut."""
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
