"""Splits an answer's text into prose and tool calls as it comes.

Owns the text that is held back: a tag that may be beginning, a call that has not ended, white space
that may stand before a call. One answer, one thread. Invariant: a call is given out whole, and an
unreadable call comes out as prose.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from .chat_message import ToolCall
from .stop_strings import held_back
from .tool_calls import read_tool_call

_OPEN, _CLOSE = "<tool_call>", "</tool_call>"


class ToolCallScanner:
    """called: at least one call came."""

    def __init__(self, tools: Sequence[Mapping[str, Any]]) -> None:
        """tools: the request's definitions; with none, all text is prose."""
        self._tools = tools
        self._held = ""
        self.called = False

    def push(self, text: str) -> list[str | ToolCall]:
        """Take the next piece of text; returns the prose and calls that are certain now, in
        order."""
        if not self._tools:
            return [text] if text else []
        self._held += text
        found: list[str | ToolCall] = []
        while (start := self._held.find(_OPEN)) >= 0:
            end = self._held.find(_CLOSE, start)
            if end < 0:
                self._prose(found, self._take(len(self._held[:start].rstrip())))
                return found
            call = read_tool_call(self._held[start + len(_OPEN) : end], self._tools)
            if call is None:
                self._prose(found, self._take(end + len(_CLOSE)))
                continue
            self._prose(found, self._take(start).rstrip())
            self._take(end + len(_CLOSE) - start)
            self.called = True
            found.append(call)
        certain = self._held[: len(self._held) - held_back(self._held, (_OPEN,))].rstrip()
        self._prose(found, self._take(len(certain)))
        return found

    def finish(self) -> list[str | ToolCall]:
        """The text held back, after the last piece."""
        found: list[str | ToolCall] = []
        self._prose(found, self._take(len(self._held)))
        return found

    def _take(self, length: int) -> str:
        taken, self._held = self._held[:length], self._held[length:]
        return taken

    def _prose(self, found: list[str | ToolCall], text: str) -> None:
        """White space around calls is no prose."""
        if text and not (self.called and text.isspace()):
            found.append(text)
