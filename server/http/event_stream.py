"""A reply of server-sent events, written as its connection takes them.

One event loop's thread. Invariants: a client that reads too slowly is waited for, once its
transport's buffer is over _HIGH_WATER_BYTES; the buffer takes at most _WRITE_BYTES more; while
nothing else is written, something is every KEEP_ALIVE_SECONDS.
"""

import asyncio
from collections.abc import Callable

from aiohttp import HttpVersion11, web

KEEP_ALIVE_SECONDS = 15.0
_HIGH_WATER_BYTES = 1 << 14
"""The kernel has a buffer of its own behind this one, and a larger one."""
_WRITE_BYTES = 1 << 16

_LOOKS = 4
"""At a stream within its longest silence: what is written leaves a mark and reads no clock."""


class EventStream:
    def __init__(
        self,
        request: web.Request,
        keep_alive: Callable[[], bytes],
        keep_alive_seconds: float = KEEP_ALIVE_SECONDS,
    ) -> None:
        """keep_alive: what is written after a silence of three quarters of keep_alive_seconds, and
        of no more than these."""
        self._request = request
        self._protocol = request.protocol
        self._keep_alive = keep_alive
        self._look_seconds = keep_alive_seconds / _LOOKS
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.WriteTransport | None = None
        """To write to past aiohttp; None until the headers have left, and where replies have no
        chunks."""
        self._looks_left = _LOOKS
        """Until it has been silent for too long."""
        self._timer: asyncio.TimerHandle | None = None
        self._keeping: asyncio.Task[None] | None = None
        self.response = web.StreamResponse(
            headers={
                "Content-Type": "text/event-stream; charset=utf-8",
                "Cache-Control": "no-cache",
                "X-Accel-Buffering": "no",
            }
        )

    async def prepare(self) -> None:
        """Once, before all else. The headers leave with the first events. Afterwards
        keep_no_longer() must be called."""
        if self._request.version >= HttpVersion11:
            self.response.enable_chunked_encoding()
        await self.response.prepare(self._request)
        if self._request.transport is not None:
            self._request.transport.set_write_buffer_limits(_HIGH_WATER_BYTES)
        self._looks_left = _LOOKS
        self._timer = self._loop.call_later(self._look_seconds, self._look)

    async def write(self, events: bytes) -> None:
        """Waits for a slow client. Raises ConnectionError where it has gone."""
        for begin in range(0, len(events), _WRITE_BYTES):
            await self._request.writer.drain()
            await self.response.write(events[begin : begin + _WRITE_BYTES])
            if self.response.chunked:
                self._transport = self._request.transport
            self._looks_left = _LOOKS

    @property
    def flows(self) -> bool:
        """Whether the client would get what is written now, with nothing to wait for."""
        transport = self._transport
        return (
            transport is not None
            and not self._protocol.writing_paused
            and not transport.is_closing()
        )

    def write_now(self, events: bytes) -> None:
        """As write(), at a fraction of what aiohttp's own writer costs. REQUIRES: it flows."""
        assert self._transport is not None
        if events:
            self._transport.write(b"%x\r\n%b\r\n" % (len(events), events))
            self._looks_left = _LOOKS

    def keep_no_longer(self) -> None:
        """What comes next is the end, or the client has gone."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._keeping is not None:
            self._keeping.cancel()

    async def end(self, events: bytes) -> None:
        """Write the last events and the reply's end, and wait for a client that reads slowly.

        Until it has read nearly all, its request is not over, and its memory is counted."""
        if len(events) > _WRITE_BYTES:
            await self.write(events)
            events = b""
        await self.response.write_eof(events)
        await self._request.writer.drain()

    def _look(self) -> None:
        self._looks_left -= 1
        if not self._looks_left:
            self._looks_left = _LOOKS
            # A task, since the headers may have yet to leave, and the client may read slowly.
            self._keeping = self._loop.create_task(self._write_keep_alive())
        self._timer = self._loop.call_later(self._look_seconds, self._look)

    async def _write_keep_alive(self) -> None:
        if not self._protocol.writing_paused:
            try:
                await self.write(self._keep_alive())
            except ConnectionError:
                return
