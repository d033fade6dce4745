"""The common part of OpenAI-shaped replies: the head, and the two ways of sending one.

The fields of chats and completions are a ReplyShape's. One event loop's thread.
"""

import logging
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, Protocol

from aiohttp import web

from tasuki.engine.messages import Finished, TokenOut
from tasuki.server.errors import ServerError
from tasuki.server.http.errors import error_body
from tasuki.server.http.event_stream import EventStream
from tasuki.server.text.text_answer import Ending, Piece, TextAnswer, first_look
from tasuki.server.unread_answer import AnswerPart

from .events import DONE, ChunkEvents, event
from .usage import usage, wants_hit

log = logging.getLogger(__name__)

# How long a stream's headers may wait for a refusal by the engine, which then has its own status.
_FIRST_LOOK_SECONDS = 0.5


@dataclass(frozen=True)
class ReplyHead:
    """object: as OpenAI names whole replies; a chunk's may differ."""

    id: str
    model: str
    created: int = field(default_factory=lambda: int(time.time()))

    def fields(self, kind: str) -> dict[str, Any]:
        """Those that every reply and every chunk of it begins with."""
        return {"id": self.id, "object": kind, "created": self.created, "model": self.model}


class ReplyShape(Protocol):
    """Fed one answer in order. What `opening`, `push` and `finish` return are the choices of one
    chunk each, as JSON. complete: nothing more of the answer is wanted."""

    head: ReplyHead
    whole_kind: str
    chunk_kind: str

    @property
    def complete(self) -> bool: ...

    def opening(self) -> list[bytes]: ...

    def push(self, piece: Piece) -> list[bytes]: ...

    def finish(self, ending: Ending) -> list[bytes]: ...

    def whole(self, ending: Ending) -> dict[str, Any]:
        """The one choice of a reply that is not streamed. REQUIRES: all was pushed."""
        ...

    def reasoning_tokens(self, ending: Ending) -> int | None:
        """Of the answer's tokens; None where it could hold no reasoning. REQUIRES: as for whole."""
        ...


class WholeReply:
    """One JSON object, once the answer has ended."""

    def __init__(self, request: web.Request, answer: TextAnswer, shape: ReplyShape) -> None:
        self._request = request
        self._answer = answer
        self._shape = shape

    def take(self, tokens: Sequence[TokenOut]) -> bool:
        """As a TokenSink."""
        for piece in self._answer.pieces(tokens):
            self._shape.push(piece)
            if self._shape.complete:
                self._answer.stop()
        return True

    async def send(self, parts: AsyncGenerator[AnswerPart, None]) -> web.StreamResponse:
        async with aclosing(parts):
            async for part in parts:
                if isinstance(part, Finished):
                    return web.json_response(self._body(part))
                self.take(part)
        raise AssertionError("an answer ended without its ending")

    def _body(self, end: Finished) -> dict[str, Any]:
        shape = self._shape
        rest, ending = self._answer.ended(end)
        shape.push(rest)
        shape.finish(ending)
        return {
            **shape.head.fields(shape.whole_kind),
            "choices": [shape.whole(ending)],
            "usage": usage(
                ending, shape.reasoning_tokens(ending), with_hit=wants_hit(self._request)
            ),
        }


class StreamedReply:
    """Server-sent events; those of all tokens that wait together leave in one write. An error after
    the headers is an event of its own."""

    def __init__(
        self, request: web.Request, answer: TextAnswer, shape: ReplyShape, *, include_usage: bool
    ) -> None:
        self._stream = EventStream(request)
        self._request = request
        self._answer = answer
        self._shape = shape
        self._include_usage = include_usage
        self._head = shape.head.fields(shape.chunk_kind)
        self._chunks = ChunkEvents(self._head, {"usage": None} if include_usage else {})

    def take(self, tokens: Sequence[TokenOut]) -> bool:
        """As a TokenSink."""
        flows = self._stream.flows
        if flows:
            self._stream.write_now(self._events(tokens))
        return flows

    async def send(self, parts: AsyncGenerator[AnswerPart, None]) -> web.StreamResponse:
        stream = self._stream
        last = b""
        async with first_look(parts, _FIRST_LOOK_SECONDS) as looked:
            await stream.prepare()
            try:
                await stream.write(self._chunks.of(self._shape.opening()))
                async for part in looked:
                    if isinstance(part, Finished):
                        last = self._last_events(part)
                    else:
                        await stream.write(self._events(part))
            except ConnectionError:
                return stream.response
            except Exception as error:
                if not isinstance(error, ServerError):
                    log.exception("%s failed", self._shape.head.id)
                last = event(error_body(error))
            await stream.end(last + DONE)
        return stream.response

    def _events(self, tokens: Sequence[TokenOut]) -> bytes:
        choices: list[bytes] = []
        for piece in self._answer.pieces(tokens):
            choices += self._shape.push(piece)
            if self._shape.complete:
                self._answer.stop()
        return self._chunks.of(choices)

    def _last_events(self, end: Finished) -> bytes:
        rest, ending = self._answer.ended(end)
        last = self._chunks.of([*self._shape.push(rest), *self._shape.finish(ending)])
        if self._include_usage:
            reasoning = self._shape.reasoning_tokens(ending)
            shown = usage(ending, reasoning, with_hit=wants_hit(self._request))
            last += event({**self._head, "choices": [], "usage": shown})
        return last
