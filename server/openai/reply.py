"""The common part of OpenAI-shaped replies: the head, and the two ways of sending one.

The fields of chats and completions are a ReplyShape's. One event loop's thread.
"""

import logging
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, Protocol

from aiohttp import web

from tasuki.engine.messages import Finished, TokenOut
from tasuki.server.errors import ServerError
from tasuki.server.http.errors import error_body
from tasuki.server.http.event_stream import EventStream
from tasuki.server.text.text_answer import Ending, Piece, TextAnswer, first_look
from tasuki.server.unread_answer import AnswerPart, TokenSink

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
    chunk each, as JSON."""

    head: ReplyHead
    whole_kind: str
    chunk_kind: str

    def opening(self) -> list[bytes]: ...

    def push(self, piece: Piece) -> list[bytes]: ...

    def finish(self, ending: Ending) -> list[bytes]: ...

    def whole(self, ending: Ending) -> dict[str, Any]:
        """The one choice of a reply that is not streamed. REQUIRES: all was pushed."""
        ...


Generate = Callable[[TokenSink], AsyncGenerator[AnswerPart, None]]
"""EngineClient's, of one request."""


async def send_whole(
    request: web.Request, generate: Generate, answer: TextAnswer, shape: ReplyShape
) -> web.Response:
    def take(tokens: Sequence[TokenOut]) -> bool:
        for piece in answer.pieces(tokens):
            shape.push(piece)
        return True

    async with aclosing(generate(take)) as parts:
        async for part in parts:
            if not isinstance(part, Finished):
                take(part)
                continue
            rest, ending = answer.ended(part)
            shape.push(rest)
            shape.finish(ending)
            body = {**shape.head.fields(shape.whole_kind), "choices": [shape.whole(ending)]}
            body["usage"] = usage(ending, with_hit=wants_hit(request))
            return web.json_response(body)
    raise AssertionError("an answer ended without its ending")


async def send_stream(
    request: web.Request,
    generate: Generate,
    answer: TextAnswer,
    shape: ReplyShape,
    *,
    include_usage: bool,
) -> web.StreamResponse:
    """Server-sent events; those of all tokens that wait together leave in one write. An error after
    the headers is an event of its own."""
    stream = EventStream(request)
    head = shape.head.fields(shape.chunk_kind)
    chunks = ChunkEvents(head, {"usage": None} if include_usage else {})

    def events(tokens: Sequence[TokenOut]) -> bytes:
        return chunks.of(
            [choice for piece in answer.pieces(tokens) for choice in shape.push(piece)]
        )

    def write_now(tokens: Sequence[TokenOut]) -> bool:
        flows = stream.flows
        if flows:
            stream.write_now(events(tokens))
        return flows

    def last_events(end: Finished) -> bytes:
        rest, ending = answer.ended(end)
        last = chunks.of([*shape.push(rest), *shape.finish(ending)])
        if include_usage:
            told = usage(ending, with_hit=wants_hit(request))
            last += event({**head, "choices": [], "usage": told})
        return last

    last = b""
    async with first_look(generate(write_now), _FIRST_LOOK_SECONDS) as parts:
        await stream.prepare()
        try:
            await stream.write(chunks.of(shape.opening()))
            async for part in parts:
                if isinstance(part, Finished):
                    last = last_events(part)
                else:
                    await stream.write(events(part))
        except ConnectionError:
            return stream.response
        except Exception as error:
            if not isinstance(error, ServerError):
                log.exception("%s failed", shape.head.id)
            last = event(error_body(error))
        await stream.end(last + DONE)
    return stream.response
