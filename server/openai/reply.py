"""The common part of OpenAI-shaped replies: the head, and the two ways of sending one.

The fields of chats and completions are a ReplyShape's. One event loop's thread.
"""

import logging
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, Protocol

from aiohttp import web

from tasuki.server.errors import ServerError
from tasuki.server.http.errors import error_body
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


async def send_whole(
    request: web.Request,
    parts: AsyncGenerator[AnswerPart, None],
    answer: TextAnswer,
    shape: ReplyShape,
) -> web.Response:
    async with aclosing(parts):
        async for part in parts:
            for item in answer.take(part):
                if isinstance(item, Piece):
                    shape.push(item)
                    continue
                shape.finish(item)
                body = {**shape.head.fields(shape.whole_kind), "choices": [shape.whole(item)]}
                body["usage"] = usage(item, with_hit=wants_hit(request))
                return web.json_response(body)
    raise AssertionError("an answer ended without its ending")


async def send_stream(
    request: web.Request,
    parts: AsyncGenerator[AnswerPart, None],
    answer: TextAnswer,
    shape: ReplyShape,
    *,
    include_usage: bool,
) -> web.StreamResponse:
    """Server-sent events; those of all tokens that wait together leave in one write. An error after
    the headers is an event of its own."""
    response = web.StreamResponse(
        headers={
            "Content-Type": "text/event-stream; charset=utf-8",
            "Cache-Control": "no-cache",
            "X-Accel-Buffering": "no",
        }
    )
    head = shape.head.fields(shape.chunk_kind)
    chunks = ChunkEvents(head, {"usage": None} if include_usage else {})
    last = b""
    async with first_look(parts, _FIRST_LOOK_SECONDS) as looked:
        await response.prepare(request)
        try:
            await _write(response, chunks.of(shape.opening()))
            async for part in looked:
                choices: list[bytes] = []
                for item in answer.take(part):
                    if isinstance(item, Piece):
                        choices += shape.push(item)
                        continue
                    choices += shape.finish(item)
                    if include_usage:
                        told = usage(item, with_hit=wants_hit(request))
                        last = event({**head, "choices": [], "usage": told})
                await _write(response, chunks.of(choices))
        except ConnectionError:
            return response
        except Exception as error:
            if not isinstance(error, ServerError):
                log.exception("%s failed", shape.head.id)
            last = event(error_body(error))
        await response.write_eof(last + DONE)
    return response


async def _write(response: web.StreamResponse, events: bytes) -> None:
    if events:
        await response.write(events)
