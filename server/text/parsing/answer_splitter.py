"""Splitters of an answer's text, as it comes, into its reasoning, its content and its tool calls.

ReasoningSplitter finds the end of the reasoning. It owns the text held back: the possible beginning
of a tag, and white space possibly at the reasoning's end. Invariants: thinking tags and the white
space around them belong neither to the reasoning nor to the content. Everything after the first
closing tag is content. Without a closing tag, text begun as reasoning is reasoning.

ToolCallScanner splits the text after the reasoning into content and calls. It owns the text held
back: the possible beginning of a tag, white space possibly before a call, and the call being read.
Invariants: a call's arguments are returned as they are written. Once its name is returned, a call
stays a call. A call in no known format is content, including its tags.

HeldSpace is white space held back until the characters after it decide if it is content. One
answer, one thread. The work for a segment does not grow with the text before it.
"""

from collections.abc import Mapping, Sequence
from io import StringIO
from typing import Any, NamedTuple

from tasuki.server.text.stop_strings import held_back
from tasuki.server.text.text_answer import (
    END_OF_THINK,
    THINK,
    AnswerItem,
    CallEnd,
    Content,
    Thinking,
)

from .call_reader import FUNCTION_TAG, OPEN, CallReader, CallState, Follows, Tag, tag_at
from .function_call import FunctionCall
from .json_call import JsonCall
from .parameter_types import ParameterTypes


class Split(NamedTuple):
    """Text certain now to be reasoning, and text certain to be content after it. Either may be
    empty."""

    reasoning: str
    content: str


_NOTHING = Split("", "")


class ReasoningSplitter:
    """Splitter of an answer's text into reasoning and content. reasoning: True if the next text may
    still be reasoning. thought: True once the prompt or the answer has opened the thinking tags."""

    def __init__(self, thinking: Thinking) -> None:
        self.thought = thinking is Thinking.OPENED
        self.reasoning = thinking is not Thinking.NEVER
        # True once the first letter of the reasoning, or of the content, has come.
        self._reasoning_begun = False
        self._content_begun = thinking is Thinking.NEVER
        # Held white space at the reasoning's end or before it, and after it the beginning of a
        # possible tag.
        self._space = HeldSpace()
        self._held = ""

    @property
    def passing(self) -> bool:
        """Return True if all later text is content and returned unchanged."""
        return self._content_begun

    def push(self, text: str) -> Split:
        """Add the next segment of the answer's text. Return the reasoning and content certain
        now."""
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
        """Return the text held back, once the last segment was added."""
        rest = self._release()
        if not (self.reasoning and self.thought):
            return Split("", rest)
        if not self._reasoning_begun:
            rest = rest.lstrip().removeprefix(THINK)
        return Split(rest, "")

    def _begin(self) -> None:
        """Read the text before the reasoning: white space and an opening tag. The model may write
        the tag even if the prompt has opened it already."""
        text = self._held.lstrip()
        self._space.add(self._held[: len(self._held) - len(text)])
        self._held = text
        if THINK.startswith(text) and text != THINK:
            return
        if text.startswith(THINK):
            self.thought = True
            self._space.take()
            text = text.removeprefix(THINK).lstrip()
            # Until more text comes, keep the tag itself: another tag after it does not open the
            # thought twice.
            self._reasoning_begun = bool(text)
            self._held = text or THINK
        elif self.thought:
            self._reasoning_begun = True
            self._space.take()
        else:
            self.reasoning = False
            self._content_begun = True

    def _certain(self, end: int) -> str:
        """Return the held text up to index `end`, without the white space at its end. Hold the
        white space back."""
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
    """White space held back. Its memory depends on its number of characters, not on the number of
    its segments."""

    def __init__(self) -> None:
        # None: there is no text. Most segments of an answer leave none.
        self._text: StringIO | None = None

    def add(self, text: str) -> None:
        """Append a segment to the text held back."""
        if text:
            if self._text is None:
                self._text = StringIO()
            self._text.write(text)

    def behind(self, place: int) -> str:
        """Return the text held back from character index `place` on."""
        if self._text is None:
            return ""
        self._text.seek(place)
        return self._text.read()

    def take(self) -> str:
        """Return the text held back, and hold none of it any longer."""
        if self._text is None:
            return ""
        text, self._text = self._text.getvalue(), None
        return text


_SLICE = 512
"""Number of characters given to a call reader at once. Text after the call's end in these
characters is read again."""
_LONGEST_REREAD = 1024
"""Largest length in characters of a rejected call to be searched for another call."""
_MOST_READINGS = 4
"""Largest number of times a character is read as part of a possible call. Text rejected so often is
content."""


class ToolCallScanner:
    """Splitter of an answer's text into content and tool calls. calls: number of calls begun.
    ended: number of calls with an end. full: True once the allowed number of calls has ended; later
    text is left out."""

    def __init__(
        self,
        tools: Sequence[Mapping[str, Any]],
        most: int | None = None,
        *,
        finds_bare: bool = True,
    ) -> None:
        """tools: the request's tool definitions; if empty, all text is content. most: allowed
        number of calls, later text is left out; None: any number. finds_bare: also find calls
        without an opening <tool_call> tag."""
        self._tools = tools
        self._finds_bare = finds_bare
        self._most = most
        self._types = ParameterTypes(tools)
        # The text being read. Between pieces it holds at most the beginning of a possible tag.
        self._text = ""
        self._at = 0
        # Number of letters of all segments.
        self._letters = 0
        # White space before the next content or call.
        self._space = HeldSpace()
        # An opening tag was read, and the call's format is not known yet. White space after the
        # tag.
        self._opened = False
        self._behind = HeldSpace()
        self._reader: CallReader | None = None
        # The call's opening tag was left out.
        self._is_bare = False
        # A call has just ended, and its closing tag may follow.
        self._closing = False
        # The closing tag of the last call's block has not come.
        self._in_block = False
        # True if the letter after all content so far begins a line.
        self._at_line_start = True
        # End of the text already read as a call, and the number of such readings.
        self._read_up_to = 0
        self._readings = 0
        self.calls = 0
        self.ended = 0
        self._may_run = True

    @property
    def awaits_results(self) -> bool:
        """Return True if the answer holds at least one call, and each may be run. REQUIRES: every
        segment was added."""
        return self.calls > 0 and self._may_run

    @property
    def passing(self) -> bool:
        """Return True if all text is content, because the request has no tools."""
        return not self._tools

    @property
    def space(self) -> HeldSpace:
        """Return the white space held back at the end of the content, because a call may follow.
        Without a call it is content."""
        return self._space

    @property
    def full(self) -> bool:
        return self.ended == self._most

    def push(self, text: str) -> list[AnswerItem]:
        """Add the next segment of text. Return the parts (content and calls) certain now, in
        order."""
        if not self._tools:
            return [Content(text)] if text else []
        self._letters += len(text)
        plain = self._plain(text) if not self._text and text else None
        if plain is not None:
            return [plain]
        self._text += text
        items: list[AnswerItem] = []
        self._read(items)
        return items

    def _plain(self, text: str) -> AnswerItem | None:
        """Return a segment as one part if it has only characters of a call's open string, or only
        content. Return None if it may have more; push() then has to read it. REQUIRES: no text is
        held back."""
        if self._reader is not None:
            return self._reader.letters(text) if len(text) <= _SLICE else None
        if self._opened or self._closing or "<" in text or text[-1].isspace() or self.full:
            return None
        self._at_line_start = False
        return Content(self._space.take() + text)

    def finish(self, was_cut: bool) -> list[AnswerItem]:
        """Return the parts held back, once the last segment was added. was_cut: the token limit or
        a stop string ended the answer."""
        items: list[AnswerItem] = []
        while self._reader is not None:
            self._took(self._reader, self._reader.finish(was_cut), items)
            self._read(items)
        if self._opened:
            self._space.add(OPEN + self._behind.take())
        if not (self._closing and self._in_block):
            self._content(items, len(self._text))
            rest = self._space.take()
            # White space behind calls is no content.
            if rest and not (self.calls and rest.isspace()):
                items.append(Content(rest))
        return items

    def _read(self, items: list[AnswerItem]) -> None:
        while self._advance(items):
            pass
        self._text = self._text[self._at :]
        self._at = 0

    # Each step continues from its place, and returns True if there is more to read.

    def _advance(self, items: list[AnswerItem]) -> bool:
        if self.full:
            self._at = len(self._text)
            return False
        if self._reader is not None:
            return self._feed(self._reader, items)
        if self._closing:
            return self._pass_closing()
        return self._choose(items) if self._opened else self._pass_content(items)

    def _pass_content(self, items: list[AnswerItem]) -> bool:
        start = self._text.find(OPEN, self._at)
        bare = self._next_bare(len(self._text) if start < 0 else start)
        if bare is not None:
            self._content(items, bare)
            self._is_bare = self._opened = True
            return True
        if start < 0:
            unread = len(self._text) - self._at
            tags = (OPEN, FUNCTION_TAG)
            tag = held_back(self._text[-min(unread, len(OPEN)) :], tags) if unread else 0
            self._content(items, len(self._text) - tag)
            return False
        self._content(items, start)
        self._at += len(OPEN)
        self._is_bare, self._opened = False, True
        return True

    def _next_bare(self, before: int) -> int | None:
        """Return the index of the first call without an opening tag; None if there is none before
        index `before`."""
        at = self._text.find(FUNCTION_TAG, self._at, before) if self._finds_bare else -1
        while at >= 0:
            if self._at_line_start if at == self._at else self._text[at - 1] == "\n":
                return at
            at = self._text.find(FUNCTION_TAG, at + 1, before)
        return None

    def _choose(self, items: list[AnswerItem]) -> bool:
        """Choose the reader of a call by the call's first characters, or reject the call. Return
        False if more text is needed."""
        self._at = self._pass_space(self._behind)
        ahead = self._text[self._at : self._at + len(OPEN)]
        if ahead.startswith("{"):
            self._reader = JsonCall(self.calls, self._types)
        elif ahead.startswith(FUNCTION_TAG):
            self._reader = FunctionCall(self.calls, self._types, only_known=self._is_bare)
        elif ahead == OPEN:
            # The tag was written twice.
            self._behind.add(OPEN)
            self._at += len(OPEN)
        elif FUNCTION_TAG.startswith(ahead) or OPEN.startswith(ahead):
            return False
        else:
            self._refuse(items)
        return True

    def _feed(self, reader: CallReader, items: list[AnswerItem]) -> bool:
        piece = self._text[self._at : self._at + _SLICE]
        if not piece:
            return False
        self._at += len(piece)
        self._took(reader, reader.push(piece), items)
        return self._at < len(self._text)

    def _took(self, reader: CallReader, found: list[AnswerItem], items: list[AnswerItem]) -> None:
        """Add a call reader's parts to the answer's parts. Take back the text it read beyond its
        call. found: the reader's new parts. items: the answer's new parts."""
        items += found
        if found and self.calls == self.ended:
            self.calls += 1
        if found and isinstance(found[-1], CallEnd):
            self._may_run &= found[-1].may_run
        if reader.state is CallState.READING:
            return
        self._reader = None
        if len(reader.left) > self._at:
            # The reader got the beginning of `left` with earlier pieces.
            self._text = reader.left + self._text[self._at :]
            self._at = 0
        else:
            self._at -= len(reader.left)
        if reader.state is CallState.ENDED:
            self.ended += 1
            self._opened = False
            self._space.take()
            self._behind.take()
            self._closing = self._in_block = True
        else:
            before = self._at
            self._refuse(items)
            self._pass_refused(items, max(0, reader.decided - (self._at - before)))

    def _pass_refused(self, items: list[AnswerItem], decided: int) -> None:
        """Add the text of a rejected call to the content, if it is not to be searched for another
        call. decided: number of characters read before the rejection."""
        place = self._letters - len(self._text) + self._at
        self._readings = self._readings + 1 if place < self._read_up_to else 1
        self._read_up_to = max(self._read_up_to, place + decided)
        if decided > _LONGEST_REREAD or self._readings >= _MOST_READINGS:
            self._content(items, self._at + decided)

    def _pass_closing(self) -> bool:
        """Skip the closing tags after a call, however many come. Another call may follow in the
        same <tool_call> block."""
        # After the block, white space may precede content.
        self._at = self._pass_space(HeldSpace() if self._in_block else self._space)
        follows, tag, end = tag_at(self._text, self._at)
        if follows is Follows.OPEN:
            return False
        if tag in (Tag.END_OF_CALL, Tag.END_OF_FUNCTION):
            self._at = end
            self._space.take()
            self._in_block = self._in_block and tag is Tag.END_OF_FUNCTION
            return True
        self._closing = False
        self._at_line_start = True
        self._is_bare = self._opened = self._in_block and tag is Tag.FUNCTION
        return True

    def _refuse(self, items: list[AnswerItem]) -> None:
        """Add the opening tag to the content, because no call of a known format follows it."""
        self._opened = False
        self._at_line_start = False
        if self._is_bare:
            self._space.add(self._behind.take())
            self._content(items, self._at + len(FUNCTION_TAG))
            return
        items.append(Content(self._space.take() + OPEN))
        self._space.add(self._behind.take())

    def _content(self, items: list[AnswerItem], end: int) -> None:
        """Add the text up to index `end` to the content. Hold back the white space at its end,
        because a call may follow."""
        text = self._text[self._at : end]
        if text:
            self._at_line_start = text.endswith("\n")
        self._at = end
        shown = text.rstrip()
        if shown:
            items.append(Content(self._space.take() + shown))
        self._space.add(text[len(shown) :])

    def _pass_space(self, passed: HeldSpace) -> int:
        """Move white space at the current index to `passed`. Return the index of the next other
        character."""
        start = self._at
        while start < len(self._text):
            piece = self._text[start : start + _SLICE]
            letters = piece.lstrip()
            passed.add(piece[: len(piece) - len(letters)])
            start += len(piece) - len(letters)
            if letters:
                break
        return start
