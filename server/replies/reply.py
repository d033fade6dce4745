"""An answer's way to its HTTP client: as one JSON object, or as events while it is made.

The shapes of both are an AnswerWriter's. One event loop's thread.
"""

import json
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing
from functools import partial
from typing import Any, Protocol

import msgspec
from aiohttp import web

from tasuki.engine.messages import Finished, TokenOut
from tasuki.server.auth.held_bytes import Hold
from tasuki.server.errors import ServerError
from tasuki.server.http.errors import count_failure
from tasuki.server.http.event_stream import EventStream
from tasuki.server.http.json_reply import send_json
from tasuki.server.text.text_answer import Ending, Piece, TextAnswer, first_looks
from tasuki.server.unread_answer import AnswerPart, TokenSink
from tasuki.utils.loops.together import together

log = logging.getLogger(__name__)

FIRST_LOOK_SECONDS = 0.5
"""How long a stream's headers may wait for a refusal by the engine, which then has its own
status."""

_COUNTED_AT_ONCE = 1 << 14
"""Bytes of an answer: less is part of what each answer is counted with."""

KEEP_ALIVE_COMMENT = b": keep-alive\n\n"

Writing = Callable[[Callable[[], bytes]], Awaitable[bytes]]
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
