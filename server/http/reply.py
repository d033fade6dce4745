"""Sends an answer to its HTTP client: as one JSON object, or as events while it is made.

An AnswerWriter gives the bodies of both; WholeReply and StreamedReply send them. TextEvent is an
event with a name, which is its body's type.

The memory of a reply counts as its request's until the client has read it: aiohttp ends a handler
earlier, and would count the bytes of the connection's buffer nowhere.

EventStream writes server-sent events as its connection takes them. Invariants: once its transport's
buffer is over _HIGH_WATER_BYTES it waits for the client; the buffer takes at most _WRITE_BYTES
more; while no other event is written, something is every KEEP_ALIVE_SECONDS.

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
    """Return the bodies, as JSON, of whole events that named_event() made."""
    for event in events.split(b"\n\n")[:-1]:
        # JSON has no line's end outside of its strings, and an escaped one within.
        yield event.partition(b"\ndata: ")[2]


BodyOf = Callable[[str], dict[str, Any]]
"""Returns the JSON object that holds a text."""


class TextEvent:
    """Events that differ in one text. Each is, byte by byte, what named_event() makes of it."""

    def __init__(self, body: BodyOf) -> None:
        """body: the one that holds a text. REQUIRES: no other string in it is empty."""
        self._before, self._after = named_event(body("")).split(b'""')

    def holding(self, text: str) -> bytes:
        return b"%b%b%b" % (self._before, msgspec.json.encode(text), self._after)


async def send_json(request: web.Request, body: bytes) -> web.StreamResponse:
    """Send the body, and return the response once nearly all of it has left.

    A client that has gone ends the wait: its connection is lost, and the handler is cancelled.
    """
    response = web.Response(body=body, content_type="application/json", charset="utf-8")
    await response.prepare(request)
    await response.write_eof()
    await request.writer.drain()
    return response


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
        keep_alive: Work[bytes],
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


log = logging.getLogger(__name__)

FIRST_LOOK_SECONDS = 0.5
"""How long a stream's headers may wait for a refusal by the engine, which then has its own
status."""

_COUNTED_AT_ONCE = 1 << 14
"""Bytes of an answer: less is part of what each answer is counted with."""

KEEP_ALIVE_COMMENT = b": keep-alive\n\n"

Writing = Callable[[Work[bytes]], Awaitable[bytes]]
"""Has a text written where it takes long; returns it."""


class AnswerWriter(Protocol):
    """Fed one answer in order. What it returns, but for `whole`, are whole server-sent events, in
    their order. id: for logs. complete: no more of the answer is wanted; never where
    may_complete is false, so that nobody needs to look after each token. keeps: something of the
    answer is kept until its end."""

    id: str
    may_complete: bool
    keeps: bool

    @property
    def complete(self) -> bool: ...

    @property
    def kept_bytes(self) -> int:
        """Memory of what is kept of the answer so far."""
        ...

    def opening(self) -> bytes: ...

    def piece(self, piece: Piece) -> bytes: ...

    def ending(self, rest: Piece, ending: Ending) -> bytes:
        """rest: the text that was held back."""
        ...

    def failure(self, error: Exception) -> bytes:
        """In place of the ending."""
        ...

    def keep_alive(self) -> bytes:
        """An event without content, for clients and proxies that end silent connections."""
        ...

    def whole(self) -> dict[str, Any]:
        """The reply that is not streamed. REQUIRES: the ending came."""
        ...


class Choice:
    """One answer on its way to its shape. The engine stops where no more of it is wanted."""

    def __init__(self, answer: TextAnswer, writer: AnswerWriter, hold: Hold) -> None:
        """hold: the request's, which counts what the writer keeps of the answer."""
        self.writer = writer
        self._answer = answer
        self._hold = hold
        self._counted = 0

    def written(self, tokens: Sequence[TokenOut]) -> bytes:
        """Return the events of these tokens. Raises Busy and InvalidRequest where what is kept of
        the answer is more than its caller may hold."""
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
    """One JSON object, once every choice has ended."""

    def __init__(
        self, request: web.Request, choices: Sequence[Choice], work: Writing | None = None
    ) -> None:
        """choices: one or more, of one reply. work: writes it elsewhere, where it is long."""
        self._request = request
        self._choices = choices
        self._work = work

    @property
    def sinks(self) -> list[TokenSink]:
        """Of each choice."""
        return [partial(self._take, choice) for choice in self._choices]

    def _take(self, choice: Choice, tokens: Sequence[TokenOut]) -> bool:
        choice.written(tokens)
        return True

    async def send(self, answers: Sequence[AsyncGenerator[AnswerPart, None]]) -> web.StreamResponse:
        """answers: of each choice."""
        await together([self._read(*pair) for pair in zip(self._choices, answers, strict=True)])
        body = self._body() if self._work is None else await self._work(self._body)
        return await send_json(self._request, body)

    def _body(self) -> bytes:
        whole = self._choices[0].writer.whole()
        try:
            return msgspec.json.encode(whole)
        except UnicodeEncodeError:
            # A call's arguments may name half a character, which UTF-8 does not have.
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
    """Server-sent events; those of all tokens of a choice that wait together leave in one write.
    An error after the headers is an event of its own, and the reply's end."""

    def __init__(self, request: web.Request, choices: Sequence[Choice]) -> None:
        """choices: one or more, of one reply."""
        self._choices = choices
        self._request = request
        self._stream = EventStream(request, choices[0].writer.keep_alive)

    @property
    def sinks(self) -> list[TokenSink]:
        """Of each choice."""
        return [partial(self._take, choice) for choice in self._choices]

    def _take(self, choice: Choice, tokens: Sequence[TokenOut]) -> bool:
        flows = self._stream.flows
        if flows:
            self._stream.write_now(choice.written(tokens))
        return flows

    async def send(self, answers: Sequence[AsyncGenerator[AnswerPart, None]]) -> web.StreamResponse:
        """answers: of each choice."""
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
