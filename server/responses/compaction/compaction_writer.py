"""A model's summary as OpenAI's `response.compaction`: what stays, and the summary's item.

Owns the summary so far. One answer, one thread.
"""

import time
from collections.abc import Sequence
from typing import Any

from tasuki.server.http.errors import HttpRefusal
from tasuki.server.replies.growing_text import GrowingText
from tasuki.server.responses.carried.compaction_item import compaction_item
from tasuki.server.responses.response_writer import response_usage
from tasuki.server.responses.stored_items import item_id
from tasuki.server.text.answer_parts import AnswerItem, Content
from tasuki.server.text.parsing.answer_parser import AnswerParser
from tasuki.server.text.text_answer import Ending, Piece

_KEPT_OF_LETTER = 4
"""Bytes, while the reply is written too."""


class CompactionWriter:
    """An AnswerWriter of a reply that is never streamed."""

    keeps = True

    def __init__(
        self, response_id: str, kept: Sequence[dict[str, Any]], parser: AnswerParser
    ) -> None:
        """kept: the items that stay. parser: of the summary, whose thoughts and calls are left
        out."""
        self.id = response_id
        self.may_complete = parser.may_complete
        self._kept = kept
        self._parser = parser
        self._summary = GrowingText()
        self._usage: dict[str, Any] = {}
        self._letters = 0

    @property
    def complete(self) -> bool:
        return self._parser.complete

    @property
    def kept_bytes(self) -> int:
        return _KEPT_OF_LETTER * self._letters

    def opening(self) -> bytes:
        return b""

    def piece(self, piece: Piece) -> bytes:
        self._add(self._parser.push(piece))
        return b""

    def ending(self, rest: Piece, ending: Ending) -> bytes:
        self._add(self._parser.push(rest))
        self._add(self._parser.finish(ending))
        self._usage = response_usage(self._parser.ending(ending), with_hit=False)
        return b""

    def failure(self, error: Exception) -> bytes:
        return b""

    def keep_alive(self) -> bytes:
        return b""

    def whole(self) -> dict[str, Any]:
        """Raises HttpRefusal where the model wrote no summary: nothing would stand for the rest."""
        summary = str(self._summary).strip()
        if not summary:
            raise HttpRefusal(
                500, "no_summary", "the model wrote no summary: ask again, or send fewer tools"
            )
        item = compaction_item(item_id("cmp", self.id, len(self._kept)), summary)
        return {
            "id": self.id,
            "object": "response.compaction",
            "created_at": int(time.time()),
            "output": [*self._kept, item],
            "usage": self._usage,
        }

    def _add(self, items: list[AnswerItem]) -> None:
        for item in items:
            if isinstance(item, Content):
                self._summary.add(item.text)
                self._letters += len(item.text)
