"""A request's body, read within bounds of size and time, and what happens to one that is not read.

Owns the deadline of a body. Knows no JSON. One event loop's thread.
Invariants: nothing of a body is read before its reader asks for it, not even where the client waits
for leave to send it; what is read is never inflated; a body that nobody asked for is not drained
without a bound, but ends its connection.
"""

import asyncio
from collections.abc import Awaitable, Callable

from aiohttp import web

from .errors import HttpRefusal

# A body has that long, and as long again as this rate takes for what came of it.
_GRACE_SECONDS = 30.0
_BYTES_PER_SECOND = 1 << 16

# Clients that send a short body before they listen hear why it was refused.
_SKIMMED_BYTES = 1 << 18
_SKIM_SECONDS = 1.0
_CALLER_SKIM_SECONDS = 10.0

_MAY_SEND = web.RequestKey("may_send", bool)


async def read_body(request: web.Request) -> list[bytes]:
    """Its pieces. Raises HttpRefusal where it comes too slowly, HTTPRequestEntityTooLarge."""
    size = request.client_max_size
    announced = request.content_length or 0
    if announced > size:
        raise web.HTTPRequestEntityTooLarge(max_size=size, actual_size=announced)
    if _waits_for_leave(request):
        await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        # It is no part of the answer, which has yet to begin.
        request.writer.output_size = 0
    pieces: list[bytes] = []
    received = 0
    begun = asyncio.get_running_loop().time()
    try:
        async with asyncio.timeout_at(begun + _GRACE_SECONDS) as deadline:
            async for piece in request.content.iter_any():
                received += len(piece)
                if received > size:
                    raise web.HTTPRequestEntityTooLarge(max_size=size, actual_size=received)
                pieces.append(piece)
                deadline.reschedule(begun + _GRACE_SECONDS + received / _BYTES_PER_SECOND)
    except TimeoutError as error:
        request[_MAY_SEND] = False
        raise HttpRefusal(
            408, "slow_body", f"the body stopped after {received} bytes: send it faster"
        ) from error
    return pieces


async def leave_later(request: web.Request) -> None:
    """For a route's `expect_handler`: leave to send the body is given when it is asked for."""
    if request.headers.get("Expect", "").lower() != "100-continue":
        raise web.HTTPExpectationFailed(text="send the body without Expect, or 100-continue")


@web.middleware
async def refuse_encodings(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    """Few bytes may stand for any number in a compressed body."""
    encoding = request.headers.get("Content-Encoding", "identity")
    if encoding.strip().lower() not in ("", "identity"):
        raise HttpRefusal(
            415, "unsupported_encoding", f"Content-Encoding {encoding:.40}: send the body plain"
        )
    return await handler(request)


@web.middleware
async def end_with_unread_bodies(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    """The outermost: closes a connection whose body nobody has read, once it was answered."""
    response = await handler(request)
    if not request.content.is_eof() and not response.prepared:
        response.force_close()
        await response.prepare(request)
        await response.write_eof()
        if not _waits_for_leave(request):
            await _skim(request)
    return response


def may_send(request: web.Request) -> None:
    """The caller was let in: of a body that is too large, more is read before it is cut off."""
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
    except (TimeoutError, web.RequestPayloadError):
        return
