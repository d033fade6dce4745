"""Splits an answer's text at the end of its reasoning, as the text comes.

ReasoningSplitter owns the text that is held back: a tag that may be beginning, white space that may
stand at the reasoning's end. One answer, one thread. Invariants: tags and the white space around
them are no part of either side; behind the first closing tag all is content; without one, all that
began as reasoning is reasoning; the work for a piece does not grow with the text before it.

HeldSpace: White space that is held back until the letters behind it show what it belongs to. One
answer, one thread.
"""

from io import StringIO
from typing import NamedTuple

from tasuki.server.text.stop_strings import held_back
from tasuki.server.text.text_answer import END_OF_THINK, THINK, Thinking


class Split(NamedTuple):
    """What is certain now; either may be empty."""

    reasoning: str
    content: str


_NOTHING = Split("", "")


class ReasoningSplitter:
    """reasoning: what comes next may be reasoning still. thought: the tags were opened, by the
    prompt or by the answer."""

    def __init__(self, thinking: Thinking) -> None:
        self.thought = thinking is Thinking.OPENED
        self.reasoning = thinking is not Thinking.NEVER
        # The first letter of the reasoning came, or that of the content.
        self._reasoning_begun = False
        self._content_begun = thinking is Thinking.NEVER
        # White space that may stand at the reasoning's end or before it; behind it the beginning
        # of a tag, if anything.
        self._space = HeldSpace()
        self._held = ""

    @property
    def passing(self) -> bool:
        """All that comes is content as it is."""
        return self._content_begun

    def push(self, text: str) -> Split:
        """Take the next piece of text; return the text that is certain now."""
        if not self.reasoning:
            return Split("", self._content(text))
        self._held += text
        if not self._reasoning_begun:
            self._begin()
            if not self._reasoning_begun:
                return _NOTHING if self.reasoning else Split("", self._release())
        end = self._held.find(END_OF_THINK)
        if end >= 0:
            self.reasoning = False
            behind = self._held[end + len(END_OF_THINK) :]
            reasoning = self._certain(end)
            self._release()
            return Split(reasoning, self._content(behind))
        return Split(self._certain(len(self._held) - held_back(self._held, (END_OF_THINK,))), "")

    def finish(self) -> Split:
        """Return the text held back, after the last piece."""
        rest = self._release()
        if not (self.reasoning and self.thought):
            return Split("", rest)
        if not self._reasoning_begun:
            rest = rest.lstrip().removeprefix(THINK)
        return Split(rest, "")

    def _begin(self) -> None:
        """Read the text before the reasoning. The model may open the tag itself, even behind a
        prompt that has opened it."""
        text = self._held.lstrip()
        self._space.add(self._held[: len(self._held) - len(text)])
        self._held = text
        if THINK.startswith(text) and text != THINK:
            return
        if text.startswith(THINK):
            self.thought = True
            self._space.take()
            text = text.removeprefix(THINK).lstrip()
            # Until more comes, a tag alone is nothing that could be opened twice.
            self._reasoning_begun = bool(text)
            self._held = text or THINK
        elif self.thought:
            self._reasoning_begun = True
            self._space.take()
        else:
            self.reasoning = False
            self._content_begun = True

    def _certain(self, end: int) -> str:
        """Return the text held up to a place, and hold the white space at its end."""
        text, self._held = self._held[:end], self._held[end:]
        shown = text.rstrip()
        certain = ""
        if shown:
            certain = self._space.take() + shown
        self._space.add(text[len(shown) :])
        return certain

    def _content(self, text: str) -> str:
        if not self._content_begun:
            text = text.lstrip()
            self._content_begun = bool(text)
        return text

    def _release(self) -> str:
        rest = self._space.take() + self._held
        self._held = ""
        return rest


class HeldSpace:
    """The white space held. Its memory is that of its letters, however short its pieces are."""

    def __init__(self) -> None:
        # None: there is none. Most pieces of an answer leave none.
        self._text: StringIO | None = None

    def add(self, text: str) -> None:
        """Hold a piece behind the others."""
        if text:
            if self._text is None:
                self._text = StringIO()
            self._text.write(text)

    def behind(self, place: int) -> str:
        """Return what is held from its letter number `place` on."""
        if self._text is None:
            return ""
        self._text.seek(place)
        return self._text.read()

    def take(self) -> str:
        """Return all that is held, and hold no more of it."""
        if self._text is None:
            return ""
        text, self._text = self._text.getvalue(), None
        return text
