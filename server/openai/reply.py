"""The common part of OpenAI-shaped replies: the head, and the two ways of sending one.

The fields of chats and completions are a ReplyShape's. One event loop's thread.
"""

import json
import logging
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, Protocol

from aiohttp import web

from tasuki.server.errors import ServerError
from tasuki.server.http.errors import error_body
from tasuki.server.text.text_answer import Ending, Piece, first_look

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

    def around(self, kind: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "id": self.id,
            "object": kind,
            "created": self.created,
            "model": self.model,
            "choices": choices,
        }


class ReplyShape(Protocol):
    """Fed one answer in order. What `push` returns are the choices of one chunk each."""

    head: ReplyHead
    whole_kind: str
    chunk_kind: str

    def opening(self) -> list[dict[str, Any]]: ...

    def push(self, piece: Piece) -> list[dict[str, Any]]: ...

    def finish(self, ending: Ending) -> list[dict[str, Any]]: ...

    def whole(self, ending: Ending) -> dict[str, Any]:
        """The one choice of a reply that is not streamed. REQUIRES: all was pushed."""
        ...


async def send_whole(
    request: web.Request, items: AsyncGenerator[Piece | Ending, None], shape: ReplyShape
) -> web.Response:
    async with aclosing(items):
        async for item in items:
            if isinstance(item, Piece):
                shape.push(item)
                continue
            shape.finish(item)
            body = shape.head.around(shape.whole_kind, [shape.whole(item)])
            body["usage"] = usage(item, with_hit=wants_hit(request))
            return web.json_response(body)
    raise AssertionError("an answer ended without its ending")


async def send_stream(
    request: web.Request,
    items: AsyncGenerator[Piece | Ending, None],
    shape: ReplyShape,
    *,
    include_usage: bool,
) -> web.StreamResponse:
    """Server-sent events. An error after the headers is an event of its own."""
    response = web.StreamResponse(
        headers={
            "Content-Type": "text/event-stream; charset=utf-8",
            "Cache-Control": "no-cache",
            "X-Accel-Buffering": "no",
        }
    )
    extra: dict[str, Any] = {"usage": None} if include_usage else {}

    async def write(choices: list[dict[str, Any]]) -> None:
        for choice in choices:
            await response.write(_event({**shape.head.around(shape.chunk_kind, [choice]), **extra}))

    async with first_look(items, _FIRST_LOOK_SECONDS) as looked:
        await response.prepare(request)
        try:
            await write(shape.opening())
            async for item in looked:
                if isinstance(item, Piece):
                    await write(shape.push(item))
                    continue
                await write(shape.finish(item))
                if include_usage:
                    last = shape.head.around(shape.chunk_kind, [])
                    last["usage"] = usage(item, with_hit=wants_hit(request))
                    await response.write(_event(last))
        except ConnectionError:
            return response
        except Exception as error:
            if not isinstance(error, ServerError):
                log.exception("%s failed", shape.head.id)
            await response.write(_event(error_body(error)))
        await response.write(b"data: [DONE]\n\n")
        await response.write_eof()
    return response


def _event(body: dict[str, Any]) -> bytes:
    return f"data: {json.dumps(body, ensure_ascii=False, separators=(',', ':'))}\n\n".encode()
