"""An answer's way to its HTTP client: as one JSON object, or as events while it is made.

The shapes of both are an AnswerWriter's. One event loop's thread.
"""

import logging
from collections.abc import AsyncGenerator, Iterable, Iterator, Sequence
from contextlib import aclosing
from typing import Any, Protocol

from aiohttp import web

from tasuki.engine.messages import Finished, TokenOut
from tasuki.server.errors import ServerError
from tasuki.server.http.event_stream import EventStream
from tasuki.server.text.text_answer import Ending, Piece, TextAnswer, first_look
from tasuki.server.unread_answer import AnswerPart

log = logging.getLogger(__name__)

# How long a stream's headers may wait for a refusal by the engine, which then has its own status.
_FIRST_LOOK_SECONDS = 0.5

KEEP_ALIVE_COMMENT = b": keep-alive\n\n"


class AnswerWriter(Protocol):
    """Fed one answer in order. What it returns, but for `whole`, are whole server-sent events, in
    their order. id: for logs. complete: no more of the answer is wanted."""

    id: str

    @property
    def complete(self) -> bool: ...

    def opening(self) -> bytes: ...

    def pieces(self, pieces: Iterable[Piece]) -> bytes: ...

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


class _Reply:
    """Either way. The engine stops where no more of its answer is wanted."""

    def __init__(self, answer: TextAnswer, writer: AnswerWriter) -> None:
        self._answer = answer
        self._writer = writer

    def _written(self, tokens: Sequence[TokenOut]) -> bytes:
        return self._writer.pieces(self._wanted(tokens))

    def _wanted(self, tokens: Sequence[TokenOut]) -> Iterator[Piece]:
        for piece in self._answer.pieces(tokens):
            yield piece
            if self._writer.complete:
                self._answer.stop()


class WholeReply(_Reply):
    """One JSON object, once the answer has ended."""

    def take(self, tokens: Sequence[TokenOut]) -> bool:
        """As a TokenSink."""
        self._written(tokens)
        return True

    async def send(self, parts: AsyncGenerator[AnswerPart, None]) -> web.StreamResponse:
        async with aclosing(parts):
            async for part in parts:
                if isinstance(part, Finished):
                    self._writer.ending(*self._answer.ended(part))
                    return web.json_response(self._writer.whole())
                self.take(part)
        raise AssertionError("an answer ended without its ending")


class StreamedReply(_Reply):
    """Server-sent events; those of all tokens that wait together leave in one write. An error after
    the headers is an event of its own."""

    def __init__(self, request: web.Request, answer: TextAnswer, writer: AnswerWriter) -> None:
        super().__init__(answer, writer)
        self._stream = EventStream(request, writer.keep_alive)

    def take(self, tokens: Sequence[TokenOut]) -> bool:
        """As a TokenSink."""
        flows = self._stream.flows
        if flows:
            self._stream.write_now(self._written(tokens))
        return flows

    async def send(self, parts: AsyncGenerator[AnswerPart, None]) -> web.StreamResponse:
        stream, writer = self._stream, self._writer
        last = b""
        async with first_look(parts, _FIRST_LOOK_SECONDS) as looked:
            await stream.prepare()
            try:
                await stream.write(writer.opening())
                async for part in looked:
                    if isinstance(part, Finished):
                        last = writer.ending(*self._answer.ended(part))
                    else:
                        await stream.write(self._written(part))
            except ConnectionError:
                return stream.response
            except Exception as error:
                if not isinstance(error, ServerError):
                    log.exception("%s failed", writer.id)
                last = writer.failure(error)
            finally:
                stream.keep_no_longer()
            await stream.end(last)
        return stream.response
