"""Tool calls in a thought: they count where the thought is never closed, since a model may begin a
call without closing it.

Owns the text from the first such call on, which is held back until it is known what it belongs to.
One answer, one thread. Invariants: what comes out is the thought, letter by letter, up to the first
call; the work for a piece does not grow with the text before it; what is held has a bound, over
which it is thought.
"""

from collections.abc import Mapping, Sequence
from io import StringIO
from typing import Any

from tasuki.server.text.answer_parts import AnswerItem, CallArguments, Content

from .tool_call_scanner import ToolCallScanner

MOST_HELD = 1 << 18
"""Letters."""
_HELD_OF_LETTER = 8
"""Bytes: as thought, and again as a part of a call."""


class ThoughtCalls:
    """scanner: what finds the calls."""

    def __init__(self, tools: Sequence[Mapping[str, Any]], most: int | None) -> None:
        """tools, most: as of ToolCallScanner."""
        self._tools = tools
        self._most = most
        self._begin()

    def _begin(self) -> None:
        """Hold nothing."""
        self.scanner = ToolCallScanner(self._tools, self._most, finds_bare=False)
        # The text from which some is held. Of its letters: the first that is not given out yet.
        self._text = StringIO()
        self._letters = 0
        self._given = 0
        self._calls = _HeldParts()

    @property
    def holds(self) -> bool:
        return self._given < self._letters

    @property
    def held_bytes(self) -> int:
        """Memory of what is held."""
        return _HELD_OF_LETTER * (self._letters - self._given)

    def push(self, text: str) -> str:
        """Take the next piece of the thought; return what is thought for certain."""
        if not self.holds and "<" not in text and not text[-1:].isspace():
            return text
        self._text.write(text)
        self._letters += len(text)
        thought = self._thought(self.scanner.push(text))
        if self._letters - self._given > MOST_HELD:
            return thought + self.close()
        if 2 * self._given >= self._letters:
            held = self._held()
            self._text = StringIO()
            self._text.write(held)
            self._letters, self._given = len(held), 0
        return thought

    def close(self) -> str:
        """Return what is held: the thought is closed, and so no call is one."""
        held = self._held()
        self._begin()
        return held

    def finish(self, was_cut: bool) -> tuple[str, list[AnswerItem]]:
        """Return the rest of the thought, and the calls with what follows them: the answer ended
        before the thought did. was_cut: as of ToolCallScanner.finish()."""
        thought = self._thought(self.scanner.finish(was_cut))
        return thought, self._calls.take()

    def _thought(self, items: Sequence[AnswerItem]) -> str:
        """Return the text before the first call, and keep the parts from there on."""
        texts: list[str] = []
        for item in items:
            if isinstance(item, Content) and not self._calls:
                texts.append(item.text)
            else:
                self._calls.add(item)
        thought = "".join(texts)
        self._given += len(thought)
        return thought

    def _held(self) -> str:
        self._text.seek(self._given)
        return self._text.read()


class _HeldParts:
    """Parts in their order, those that are together one text as one."""

    def __init__(self) -> None:
        self._parts: list[AnswerItem] = []
        self._last: Content | CallArguments | None = None
        self._text = StringIO()

    def __bool__(self) -> bool:
        return bool(self._parts) or self._last is not None

    def add(self, item: AnswerItem) -> None:
        if not isinstance(item, Content | CallArguments):
            self._join()
            self._parts.append(item)
            return
        if type(item) is not type(self._last):
            self._join()
            self._last = item
        self._text.write(item.json if isinstance(item, CallArguments) else item.text)

    def take(self) -> list[AnswerItem]:
        self._join()
        return self._parts

    def _join(self) -> None:
        last, text = self._last, self._text.getvalue()
        if isinstance(last, CallArguments):
            self._parts.append(CallArguments(last.number, text))
        elif isinstance(last, Content):
            self._parts.append(Content(text))
        self._last, self._text = None, StringIO()
