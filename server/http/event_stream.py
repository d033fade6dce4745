"""A reply of server-sent events, written as its connection takes them.

One event loop's thread. Invariant: a client that reads too slowly is waited for, once its
transport's buffer is over the high-water mark; what is written meanwhile is one write at most.
"""

from aiohttp import HttpVersion11, web


class EventStream:
    def __init__(self, request: web.Request) -> None:
        self._request = request
        self._begun = False
        self.response = web.StreamResponse(
            headers={
                "Content-Type": "text/event-stream; charset=utf-8",
                "Cache-Control": "no-cache",
                "X-Accel-Buffering": "no",
            }
        )

    async def prepare(self) -> None:
        """Once, before all else. The headers leave with the first events."""
        if self._request.version >= HttpVersion11:
            self.response.enable_chunked_encoding()
        await self.response.prepare(self._request)

    async def write(self, events: bytes) -> None:
        """Waits for a slow client. Raises ConnectionError where it has gone."""
        if events:
            await self._request.writer.drain()
            await self.response.write(events)
            self._begun = True

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

    async def end(self, events: bytes) -> None:
        """The last events, and the reply's end."""
        await self.response.write_eof(events)
