"""A reply of server-sent events, written as its connection takes them.

One event loop's thread. Invariants: a client that reads too slowly is waited for, once its
transport's buffer is over the high-water mark; what is written meanwhile is one write at most;
while nothing else is written, something is every KEEP_ALIVE_SECONDS.
"""

import asyncio
from collections.abc import Callable

from aiohttp import HttpVersion11, web

KEEP_ALIVE_SECONDS = 15.0


class EventStream:
    def __init__(
        self,
        request: web.Request,
        keep_alive: Callable[[], bytes],
        keep_alive_seconds: float = KEEP_ALIVE_SECONDS,
    ) -> None:
        """keep_alive: what is written after a silence of keep_alive_seconds."""
        self._request = request
        self._keep_alive = keep_alive
        self._silence = keep_alive_seconds
        self._loop = asyncio.get_running_loop()
        self._begun = False
        self._written_at = self._loop.time()
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
        self._written_at = self._loop.time()
        self._timer = self._loop.call_later(self._silence, self._look)

    async def write(self, events: bytes) -> None:
        """Waits for a slow client. Raises ConnectionError where it has gone."""
        if events:
            await self._request.writer.drain()
            await self.response.write(events)
            self._begun = True
            self._written_at = self._loop.time()

    @property
    def flows(self) -> bool:
        """Whether the client would get what is written now, with nothing to wait for."""
        transport = self._request.transport
        return (
            self._begun
            and self.response.chunked
            and transport is not None
            and not transport.is_closing()
            and not self._request.protocol.writing_paused
        )

    def write_now(self, events: bytes) -> None:
        """As write(), at a fraction of what aiohttp's own writer costs. REQUIRES: it flows."""
        transport = self._request.transport
        assert transport is not None
        if events:
            transport.write(b"%x\r\n%b\r\n" % (len(events), events))
            self._written_at = self._loop.time()

    def keep_no_longer(self) -> None:
        """What comes next is the end, or the client has gone."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._keeping is not None:
            self._keeping.cancel()

    async def end(self, events: bytes) -> None:
        """The last events, and the reply's end."""
        await self.response.write_eof(events)

    def _look(self) -> None:
        left = self._written_at + self._silence - self._loop.time()
        if left <= 0:
            # A task, since the headers may have yet to leave, and the client may read slowly.
            self._keeping = self._loop.create_task(self._write_keep_alive())
            left = self._silence
        self._timer = self._loop.call_later(left, self._look)

    async def _write_keep_alive(self) -> None:
        if not self._request.protocol.writing_paused:
            try:
                await self.write(self._keep_alive())
            except ConnectionError:
                return
