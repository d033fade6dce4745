"""The sending of an answer to its HTTP client: as one JSON object, or as events while it is
generated.

An AnswerWriter makes the bodies of both; WholeReply and StreamedReply send them. TextEvent is an
event named by its body's type.

The memory of a reply counts against its request until the client has read it. aiohttp ends a
handler earlier, and would not count the bytes in the connection's buffer.

EventStream writes server-sent events at its connection's speed. Invariants: when its transport's
buffer exceeds _HIGH_WATER_BYTES, it waits for the client. The buffer takes at most _WRITE_BYTES
more. Without other events, a keep-alive is written at least every KEEP_ALIVE_SECONDS.

One event loop's thread.
"""

import asyncio
import json
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import aclosing
from functools import partial
from typing import Any, Protocol

import msgspec
from aiohttp import HttpVersion11, web

from tasuki.engine.messages import Finished, TokenOut
from tasuki.server.auth.limits import Hold
from tasuki.server.errors import ServerError
from tasuki.server.text.text_answer import Ending, Piece, TextAnswer, first_looks
from tasuki.server.unread_answer import AnswerPart, TokenSink
from tasuki.utils.loops import together
from tasuki.utils.signatures import Work

from .errors import count_failure


def named_event(body: dict[str, Any]) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (body["type"].encode(), msgspec.json.encode(body))


def bodies_of(events: bytes) -> Iterator[bytes]:
    """Yield the JSON bodies of whole server-sent events made by named_event()."""
    for event in events.split(b"\n\n")[:-1]:
        # JSON has no line break outside its strings, and only escaped ones inside them.
        yield event.partition(b"\ndata: ")[2]


BodyOf = Callable[[str], dict[str, Any]]
"""A function returning a JSON object with the given text in it."""


class TextEvent:
    """Server-sent events differing only in one text. The bytes of each equal those of
    named_event()."""

    def __init__(self, body: BodyOf) -> None:
        """Encode the fixed parts of the event. body: returns the body with a given text. REQUIRES:
        the body has no other empty string."""
        self._before, self._after = named_event(body("")).split(b'""')

    def holding(self, text: str) -> bytes:
        return b"%b%b%b" % (self._before, msgspec.json.encode(text), self._after)


async def send_json(request: web.Request, body: bytes) -> web.StreamResponse:
    """Send the JSON body, and return the response once nearly all of it has left.

    A disconnect ends the wait: the connection is lost, and the handler is cancelled.
    """
    response = web.Response(body=body, content_type="application/json", charset="utf-8")
    await response.prepare(request)
    await response.write_eof()
    await request.writer.drain()
    return response


KEEP_ALIVE_SECONDS = 15.0
_HIGH_WATER_BYTES = 1 << 14
"""Limit in bytes of a connection's write buffer. The kernel has another, larger buffer after it."""
_WRITE_BYTES = 1 << 16

_LOOKS = 4
"""Number of checks of a stream in one keep-alive interval. A write resets the count and reads no
clock."""


class EventStream:
    def __init__(
        self,
        request: web.Request,
        keep_alive: Work[bytes],
        keep_alive_seconds: float = KEEP_ALIVE_SECONDS,
    ) -> None:
        """Set up the stream of a request. keep_alive: returns the bytes written after a silence of
        75% to 100% of keep_alive_seconds."""
        self._request = request
        self._protocol = request.protocol
        self._keep_alive = keep_alive
        self._look_seconds = keep_alive_seconds / _LOOKS
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.WriteTransport | None = None
        """Transport of the connection, for writes past aiohttp. None until the headers have left,
        and for replies without chunks."""
        self._looks_left = _LOOKS
        """Number of checks left until a keep-alive is written."""
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
        """Prepare the stream's headers. Call it once, before all else; call keep_no_longer()
        afterwards. The headers leave with the first events."""
        if self._request.version >= HttpVersion11:
            self.response.enable_chunked_encoding()
        await self.response.prepare(self._request)
        if self._request.transport is not None:
            self._request.transport.set_write_buffer_limits(_HIGH_WATER_BYTES)
        self._looks_left = _LOOKS
        self._timer = self._loop.call_later(self._look_seconds, self._look)

    async def write(self, events: bytes) -> None:
        """Write the events, and wait for a slow client. Raises ConnectionError after a
        disconnect."""
        for begin in range(0, len(events), _WRITE_BYTES):
            await self._request.writer.drain()
            await self.response.write(events[begin : begin + _WRITE_BYTES])
            if self.response.chunked:
                self._transport = self._request.transport
            self._looks_left = _LOOKS

    @property
    def flows(self) -> bool:
        """Return True if a write now would not wait for the client; False before the first."""
        transport = self._transport
        return (
            transport is not None
            and not self._protocol.writing_paused
            and not transport.is_closing()
        )

    def write_now(self, events: bytes) -> None:
        """Write the events without a wait, cheaper than aiohttp's writer. REQUIRES: `flows` is
        True."""
        assert self._transport is not None
        if events:
            self._transport.write(b"%x\r\n%b\r\n" % (len(events), events))
            self._looks_left = _LOOKS

    def keep_no_longer(self) -> None:
        """Stop writing keep-alives. Call it before the stream's end, or after a disconnect."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._keeping is not None:
            self._keeping.cancel()

    async def end(self, events: bytes) -> None:
        """Write the last events and the reply's end, and wait for a slow client.

        Until the client has read nearly all, its request goes on and its memory is counted.
        """
        if len(events) > _WRITE_BYTES:
            await self.write(events)
            events = b""
        await self.response.write_eof(events)
        await self._request.writer.drain()

    def _look(self) -> None:
        self._looks_left -= 1
        if not self._looks_left:
            self._looks_left = _LOOKS
            # In a task, because the headers may not have been sent yet, and the client may read
            # slowly.
            self._keeping = self._loop.create_task(self._write_keep_alive())
        self._timer = self._loop.call_later(self._look_seconds, self._look)

    async def _write_keep_alive(self) -> None:
        if not self._protocol.writing_paused:
            try:
                await self.write(self._keep_alive())
            except ConnectionError:
                return


log = logging.getLogger(__name__)

FIRST_LOOK_SECONDS = 0.5
"""Longest wait in seconds before a stream's headers are sent. A refusal by the engine within this
time has its own HTTP status."""

_COUNTED_AT_ONCE = 1 << 14
"""Step in bytes for counting an answer's memory. Smaller amounts are included in each answer's base
count."""

KEEP_ALIVE_COMMENT = b": keep-alive\n\n"

Writing = Callable[[Work[bytes]], Awaitable[bytes]]
"""A function to run a long encoding on another thread. Returns its bytes."""


class AnswerWriter(Protocol):
    """The writer of one answer's bodies. It gets the answer's parts in order. Every method except
    `whole` returns whole server-sent events, in order. id: name for logs. complete: the answer
    needs no more text; checked after each token only if may_complete. keeps: the writer keeps a
    part of the answer until the end."""

    id: str
    may_complete: bool
    keeps: bool

    @property
    def complete(self) -> bool: ...

    @property
    def kept_bytes(self) -> int:
        """Return the bytes of memory held for the answer so far."""
        ...

    def opening(self) -> bytes: ...

    def piece(self, piece: Piece) -> bytes: ...

    def ending(self, rest: Piece, ending: Ending) -> bytes:
        """Return the last events of the answer. rest: text held back until now. ending: how the
        answer ended."""
        ...

    def failure(self, error: Exception) -> bytes:
        """Return the last events of an answer ended by an error."""
        ...

    def keep_alive(self) -> bytes:
        """Return a server-sent event without content, for clients and proxies with an idle
        timeout."""
        ...

    def whole(self) -> dict[str, Any]:
        """Return the whole (not streamed) reply. REQUIRES: ending() was called."""
        ...


class Choice:
    """One answer and its writer. The engine stops the answer when the writer is complete."""

    def __init__(self, answer: TextAnswer, writer: AnswerWriter, hold: Hold) -> None:
        """Join an answer and its writer. hold: counts the bytes of memory held by the request, with
        the writer's."""
        self.writer = writer
        self._answer = answer
        self._hold = hold
        self._counted = 0

    def written(self, tokens: Sequence[TokenOut]) -> bytes:
        """Return the events for these tokens up to the answer's stop. Raises Busy and
        InvalidRequest if the kept part of the answer exceeds its caller's limit."""
        answer, writer = self._answer, self.writer
        events: list[bytes] = []
        for token in tokens:
            piece = answer.piece(token)
            if piece is None:
                break
            events.append(writer.piece(piece))
            if writer.may_complete and writer.complete:
                answer.stop()
        if writer.keeps:
            self._count(writer.kept_bytes)
        return b"".join(events)

    def _count(self, kept: int) -> None:
        if kept >= self._counted + _COUNTED_AT_ONCE:
            self._hold.grow(kept - self._counted)
            self._counted = kept

    def ending(self, end: Finished) -> bytes:
        return self.writer.ending(*self._answer.ended(end))


class WholeReply:
    """A reply of one JSON object, sent after every answer has ended."""

    def __init__(
        self, request: web.Request, choices: Sequence[Choice], work: Writing | None = None
    ) -> None:
        """Set up the reply. choices: the answers of one reply, at least one. work: runs a long
        encoding elsewhere; None: encode here."""
        self._request = request
        self._choices = choices
        self._work = work

    @property
    def sinks(self) -> list[TokenSink]:
        """Return one token sink for each answer."""
        return [partial(self._take, choice) for choice in self._choices]

    def _take(self, choice: Choice, tokens: Sequence[TokenOut]) -> bool:
        choice.written(tokens)
        return True

    async def send(self, answers: Sequence[AsyncGenerator[AnswerPart, None]]) -> web.StreamResponse:
        """Wait for all answers, send the reply and return it. answers: the engine's streams, one
        for each choice."""
        await together([self._read(*pair) for pair in zip(self._choices, answers, strict=True)])
        body = self._body() if self._work is None else await self._work(self._body)
        return await send_json(self._request, body)

    def _body(self) -> bytes:
        whole = self._choices[0].writer.whole()
        try:
            return msgspec.json.encode(whole)
        except UnicodeEncodeError:
            # A call's arguments may contain half a character, unknown to UTF-8.
            return json.dumps(whole, default=msgspec.json.decode).encode()

    async def _read(self, choice: Choice, parts: AsyncGenerator[AnswerPart, None]) -> None:
        async with aclosing(parts):
            async for part in parts:
                if isinstance(part, Finished):
                    choice.ending(part)
                    return
                choice.written(part)
        raise AssertionError("an answer ended without its ending")


class StreamedReply:
    """A reply as server-sent events. All waiting tokens of an answer leave in one write. An error
    after the headers is an event of its own, and ends the reply."""

    def __init__(self, request: web.Request, choices: Sequence[Choice]) -> None:
        """Set up the reply. choices: the answers of one reply, at least one."""
        self._choices = choices
        self._request = request
        self._stream = EventStream(request, choices[0].writer.keep_alive)

    @property
    def sinks(self) -> list[TokenSink]:
        """Return one token sink for each answer."""
        return [partial(self._take, choice) for choice in self._choices]

    def _take(self, choice: Choice, tokens: Sequence[TokenOut]) -> bool:
        flows = self._stream.flows
        if flows:
            self._stream.write_now(choice.written(tokens))
        return flows

    async def send(self, answers: Sequence[AsyncGenerator[AnswerPart, None]]) -> web.StreamResponse:
        """Send the reply while the answers are generated, and return it. answers: the engine's
        streams, one for each choice."""
        stream, first = self._stream, self._choices[0].writer
        last = b""
        async with first_looks(answers, FIRST_LOOK_SECONDS) as looked:
            await stream.prepare()
            try:
                await stream.write(b"".join([choice.writer.opening() for choice in self._choices]))
                pairs = zip(self._choices, looked, strict=True)
                await together([self._write(*pair) for pair in pairs])
            except ConnectionError:
                return stream.response
            except Exception as error:
                if not isinstance(error, ServerError):
                    log.exception("%s failed", first.id)
                count_failure(self._request, error)
                last = first.failure(error)
            finally:
                stream.keep_no_longer()
            await stream.end(last)
        return stream.response

    async def _write(self, choice: Choice, parts: AsyncIterator[AnswerPart]) -> None:
        async for part in parts:
            if isinstance(part, Finished):
                await self._stream.write(choice.ending(part))
            else:
                await self._stream.write(choice.written(part))
