"""The common part of OpenAI-shaped replies: the head, and the chunks of a stream.

The fields of chats and completions are a ReplyShape's. One answer, one thread.
"""

import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Protocol

from tasuki.server.http.errors import error_body
from tasuki.server.replies.reply import KEEP_ALIVE_COMMENT
from tasuki.server.text.text_answer import Ending, Piece

from .events import DONE, ChunkEvents, event
from .usage import usage


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
    chunk each, as JSON. complete: no more of the answer is wanted."""

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
        """None where an answer of the kind has none. REQUIRES: all was pushed."""
        ...


class ChunkedReply:
    """An AnswerWriter: a chunk a choice, then [DONE]."""

    def __init__(self, shape: ReplyShape, *, include_usage: bool, with_hit: bool) -> None:
        """include_usage: a stream ends with a chunk of usage. with_hit: usage explains the hit."""
        self.id = shape.head.id
        self._shape = shape
        self._include_usage = include_usage
        self._with_hit = with_hit
        self._head = shape.head.fields(shape.chunk_kind)
        self._chunks = ChunkEvents(self._head, {"usage": None} if include_usage else {})
        self._ending: Ending | None = None

    @property
    def complete(self) -> bool:
        return self._shape.complete

    def opening(self) -> bytes:
        return self._chunks.of(self._shape.opening())

    def pieces(self, pieces: Iterable[Piece]) -> bytes:
        choices: list[bytes] = []
        for piece in pieces:
            choices += self._shape.push(piece)
        return self._chunks.of(choices)

    def ending(self, rest: Piece, ending: Ending) -> bytes:
        self._ending = ending
        last = self._chunks.of([*self._shape.push(rest), *self._shape.finish(ending)])
        if self._include_usage:
            last += event({**self._head, "choices": [], "usage": self._usage(ending)})
        return last + DONE

    def failure(self, error: Exception) -> bytes:
        return event(error_body(error)) + DONE

    def keep_alive(self) -> bytes:
        return KEEP_ALIVE_COMMENT

    def whole(self) -> dict[str, Any]:
        assert self._ending is not None
        return {
            **self._shape.head.fields(self._shape.whole_kind),
            "choices": [self._shape.whole(self._ending)],
            "usage": self._usage(self._ending),
        }

    def _usage(self, ending: Ending) -> dict[str, Any]:
        return usage(ending, self._shape.reasoning_tokens(ending), with_hit=self._with_hit)
