"""Splits an answer's text behind its reasoning into content and tool calls as it comes.

Owns the text that is held back: a tag that may be beginning, white space that may stand before a
call, and the call that is being read. One answer, one thread. Invariants: a call's arguments come
out as they are written; what is no call in a known format is content, tags and all.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from tasuki.server.text.answer_parts import AnswerItem, Content
from tasuki.server.text.stop_strings import held_back

from .call_reader import CLOSE, OPEN, CallReader, CallState
from .function_call import FunctionCall
from .json_call import JsonCall

_FUNCTION = "<function="


class ToolCallScanner:
    """calls: that were begun. ended: of these, those whose end came. full: no more is wanted, and
    what comes is left out."""

    def __init__(self, tools: Sequence[Mapping[str, Any]], most: int | None = None) -> None:
        """tools: the request's definitions; with none, all text is content. most: calls, after
        which nothing is wanted."""
        self._tools = tools
        self._most = most
        self._held = ""
        # White space before the call that is being read.
        self._before = ""
        self._reader: CallReader | None = None
        # A call has just ended, and its closing tag may follow.
        self._closing = False
        self.calls = 0
        self.ended = 0

    @property
    def passing(self) -> bool:
        """All text is content."""
        return not self._tools

    @property
    def full(self) -> bool:
        return self.ended == self._most

    def push(self, text: str) -> list[AnswerItem]:
        """Take the next piece of text; returns the parts that are certain now, in order."""
        if not self._tools:
            return [Content(text)] if text else []
        self._held += text
        items: list[AnswerItem] = []
        while self._advance(items):
            pass
        return items

    def finish(self) -> list[AnswerItem]:
        """What was held back, after the last piece."""
        items: list[AnswerItem] = []
        while self._finish_call(items) or (self._reader is None and self._advance(items)):
            pass
        if self._reader is None and not self._closing:
            self._content(items, len(self._held))
        return items

    def _finish_call(self, items: list[AnswerItem]) -> bool:
        """Whether there was one, and text is left behind it."""
        reader = self._reader
        return reader is not None and self._took(reader, reader.finish(), items)

    def _advance(self, items: list[AnswerItem]) -> bool:
        if self.full:
            self._held = ""
            return False
        if self._reader is not None:
            taken, self._held = self._held, ""
            return self._took(self._reader, self._reader.push(taken), items)
        if self._closing:
            return self._pass_closing()
        start = self._held.find(OPEN)
        if start < 0:
            certain = self._held[: len(self._held) - held_back(self._held, (OPEN,))].rstrip()
            self._content(items, len(certain))
            return False
        self._content(items, len(self._held[:start].rstrip()))
        return self._choose(items)

    def _choose(self, items: list[AnswerItem]) -> bool:
        """The reader of the call whose opening tag is held, by its first letters."""
        before, _, behind = self._held.partition(OPEN)
        body = behind.lstrip()
        if not body or (_FUNCTION.startswith(body) and body != _FUNCTION):
            return False
        if body.startswith("{"):
            self._reader = JsonCall(self.calls)
        elif body.startswith(_FUNCTION):
            self._reader = FunctionCall(self.calls, self._tools)
        else:
            self._content(items, len(before) + len(OPEN))
            return True
        self._before = before
        self._held = behind
        return True

    def _took(self, reader: CallReader, found: list[AnswerItem], items: list[AnswerItem]) -> bool:
        items += found
        if found and self.calls == self.ended:
            self.calls += 1
        if reader.state is CallState.READING:
            return False
        self._reader = None
        if reader.state is CallState.ENDED:
            self.ended += 1
            self._held = reader.left
            self._closing = True
            return True
        self._held = self._before + OPEN + reader.left
        self._content(items, len(self._before) + len(OPEN))
        return True

    def _pass_closing(self) -> bool:
        text = self._held.lstrip()
        if CLOSE.startswith(text) and text != CLOSE:
            return False
        self._held = text.removeprefix(CLOSE)
        self._closing = False
        return True

    def _content(self, items: list[AnswerItem], length: int) -> None:
        """White space around calls is no content."""
        text, self._held = self._held[:length], self._held[length:]
        if text and not (self.calls and text.isspace()):
            items.append(Content(text))
