"""A parser of an answer's text into its parts, as it comes: reasoning, then content and tool calls.

Reasoning is split off first, so a call inside the reasoning is not a call of the answer. One
answer, one thread.

ContentStops ends an answer's content at the first stop string, and searches nothing else. It owns
the content held back because a stop string could begin in it. One answer, one thread. Invariants:
no stop string spans a tool call. White space is searched as soon as it is written, even if a later
call would leave it out of the content. White space between calls is never searched. Each character
is read once.

WholeCalls holds each tool call back until it is finished, for clients running a call before they
read the answer's ending. One answer, one thread. Invariant: a call cut off by the token limit or a
stop string is never returned.

ThoughtCalls finds tool calls in the reasoning. They count if the reasoning is never closed, because
a model may begin a call without closing its reasoning. It owns the text from the first such call
on, held back until the reasoning ends. One answer, one thread. Invariants: it returns the
reasoning, character by character, up to the first call. The work for a segment does not grow with
the text before it. The held text has a limit; beyond it, it is reasoning.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from io import StringIO
from typing import Any

from tasuki.engine.messages import FinishReason
from tasuki.server.text.stop_strings import NO_STOPS, StopRule
from tasuki.server.text.text_answer import (
    AnswerItem,
    CallArguments,
    CallBegin,
    CallEnd,
    ChatEnding,
    Content,
    Ending,
    Piece,
    Reasoning,
    Thinking,
)

from .answer_splitter import HeldSpace, ReasoningSplitter, Split, ToolCallScanner


class ContentStops:
    def __init__(self, rule: StopRule) -> None:
        self._stops = rule.scanner()
        # White space already searched for stop strings, but not known to be content yet: its number
        # of letters, and its part safe from every stop string.
        self._seen = 0
        self._passed = HeldSpace()
        self._called = False
        self._behind_call = False

    @property
    def found(self) -> str | None:
        """Return the stop string ending the answer; None if none was found yet."""
        return self._stops.found

    def take(self, items: Iterable[AnswerItem], space: HeldSpace) -> list[AnswerItem]:
        """Add the next parts of the answer. Return the parts certain to come before any stop
        string. space: white space at the end of the text so far; it may begin the next content."""
        found: list[AnswerItem] = []
        for item in items:
            if self._stops.found is not None:
                return found
            if isinstance(item, Content):
                self._content(item.text, found)
                continue
            if isinstance(item, CallBegin):
                found += self._flush()
                self._called = self._behind_call = True
            found.append(item)
        if self._stops.found is None and not self._behind_call:
            self._look_ahead(space.behind(self._seen), found)
        return found

    def finish(self) -> list[AnswerItem]:
        """Return the content held back, once the answer has no more parts."""
        return [] if self._stops.found is not None else self._flush()

    def _content(self, text: str, found: list[AnswerItem]) -> None:
        new, self._seen = text[self._seen :], 0
        self._behind_call = False
        shown = self._passed.take() + self._stops.push(new)
        if shown:
            found.append(Content(shown))

    def _look_ahead(self, space: str, found: list[AnswerItem]) -> None:
        if not space:
            return
        self._seen += len(space)
        text = self._stops.push(space)
        if self._stops.found is not None:
            shown = self._passed.take() + text
            # White space behind calls is no content.
            if shown and not (self._called and shown.isspace()):
                found.append(Content(shown))
            return
        # Content before the white space may have been held back until now.
        passed = max(self._seen - self._stops.held, 0)
        before = len(text) - min(len(text), passed)
        if before:
            found.append(Content(text[:before]))
        self._passed.add(text[before:])

    def _flush(self) -> list[AnswerItem]:
        """Return the content held back because of stop strings, without white space after it."""
        held = self._passed.take() + self._stops.finish()
        content = held[: len(held) - self._seen]
        self._seen = 0
        return [Content(content)] if content else []


class WholeCalls:
    def __init__(self) -> None:
        self._begin: CallBegin | None = None
        self._arguments = StringIO()

    def push(self, items: Iterable[AnswerItem]) -> list[AnswerItem]:
        """Add the next parts of the answer. Return the parts to give to the client: no part of a
        call before its end."""
        given: list[AnswerItem] = []
        for item in items:
            match item:
                case CallBegin():
                    self._begin, self._arguments = item, StringIO()
                case CallArguments(_, text):
                    self._arguments.write(text)
                case CallEnd(number, is_cut):
                    assert self._begin is not None
                    if not is_cut:
                        whole = CallArguments(number, self._arguments.getvalue())
                        given += [self._begin, whole, item]
                case Content() | Reasoning():
                    given.append(item)
        return given


MOST_HELD = 1 << 18
"""Largest number of characters of reasoning held back because of a call in it."""
_HELD_OF_LETTER = 8
"""Bytes of memory for each held character: as reasoning, and again as a part of a call."""


class ThoughtCalls:
    """Finder of tool calls in reasoning never closed. scanner: splits the reasoning's text into
    text and calls."""

    def __init__(self, tools: Sequence[Mapping[str, Any]], most: int | None) -> None:
        """tools: the request's tool definitions. most: largest number of calls; None: any
        number."""
        self._tools = tools
        self._most = most
        self._begin()

    def _begin(self) -> None:
        """Start anew with no text held back."""
        self.scanner = ToolCallScanner(self._tools, self._most, finds_bare=False)
        # Text with a held part, its number of letters, and the index of the first held one.
        self._text = StringIO()
        self._letters = 0
        self._given = 0
        self._calls = _HeldParts()

    @property
    def holds(self) -> bool:
        return self._given < self._letters

    @property
    def held_bytes(self) -> int:
        """Return the memory of the text held back, in bytes."""
        return _HELD_OF_LETTER * (self._letters - self._given)

    def push(self, text: str) -> str:
        """Add the next segment of the reasoning. Return the text certain to be reasoning."""
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
        """Return the text held back as reasoning, because the reasoning was closed and its calls do
        not count."""
        held = self._held()
        self._begin()
        return held

    def finish(self, was_cut: bool) -> tuple[str, list[AnswerItem]]:
        """Return the rest of the reasoning, and the calls in it with the text after them. Called if
        the answer has ended without closing its reasoning. was_cut: the token limit or a stop
        string ended the answer."""
        thought = self._thought(self.scanner.finish(was_cut))
        return thought, self._calls.take()

    def _thought(self, items: Sequence[AnswerItem]) -> str:
        """Return the text before the first call, and hold back the parts from the first call on."""
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
    """Parts of an answer held back, in order. Adjacent pieces of one text are joined, to save
    memory."""

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


_BEFORE_TAGS = re.compile("(?=<)")


class AnswerParser:
    def __init__(
        self,
        thinking: Thinking,
        tools: Sequence[Mapping[str, Any]],
        *,
        parallel_calls: bool = True,
        whole_calls: bool = False,
        stops: StopRule = NO_STOPS,
        thinking_tokens: int | None = None,
    ) -> None:
        """thinking: thinking state at the end of the prompt. tools: the request's tool definitions;
        if empty, calls count as content. parallel_calls: True if an answer may hold more than one
        call; if False, it is complete after the first. whole_calls: hold each call back until it is
        finished. stops: stop strings searched in the content only. thinking_tokens: largest number
        of tokens counted as reasoning, because the engine closes the reasoning after so many; None:
        no limit."""
        self.may_complete = not parallel_calls or bool(stops.strings)
        self._splitter = ReasoningSplitter(thinking)
        most = None if parallel_calls else 1
        self._scanner = ToolCallScanner(tools, most)
        self._whole_calls = WholeCalls() if whole_calls else None
        thinks = tools and thinking is not Thinking.NEVER
        self._thought_calls = ThoughtCalls(tools, most) if thinks else None
        self._stops = ContentStops(stops) if stops.strings else None
        self._min_tokens = stops.min_tokens
        self._thinking_tokens = thinking_tokens
        self._tokens = 0
        self._reasoning_tokens = 0
        # Number of reasoning tokens before a call in the reasoning, if one is held back.
        self._tokens_before_call = 0

    @property
    def complete(self) -> bool:
        """Return True if the engine may stop: later text would be left out."""
        return self._scanner.full or self._found_stop is not None

    @property
    def may_hold(self) -> bool:
        """Return True if the parser may hold back long text: calls in reasoning."""
        return self._thought_calls is not None

    @property
    def held_bytes(self) -> int:
        """Return the memory of long text now held back (calls in reasoning), in bytes."""
        return 0 if self._thought_calls is None else self._thought_calls.held_bytes

    @property
    def passes_content(self) -> bool:
        """Return True if all later text is content and returned unchanged."""
        return self._splitter.passing and self._scanner.passing and self._stops is None

    def push(self, piece: Piece) -> list[AnswerItem]:
        """Add the next piece of the answer. Return the parts certain now, in order."""
        if piece.token is not None:
            self._tokens += 1
        if self._splitter.passing:
            return self._shown(self._content(piece.text))
        items = self._shown(self._parts(self._splitter.push(piece.text)))
        if self._splitter.reasoning and piece.token is not None:
            self._reasoning_tokens += 1
            if self._thought_calls is None or not self._thought_calls.holds:
                self._tokens_before_call = self._reasoning_tokens
        return items

    def finish(self, ending: Ending) -> list[AnswerItem]:
        """Return the parts held back, once the last piece was added. ending: ending of the
        answer."""
        items = self._parts(self._splitter.finish())
        if self._thought_calls is not None and self._splitter.reasoning:
            items += self._finish_thought(self._thought_calls, ending.is_cut)
        else:
            items += self._ended(self._scanner.finish(ending.is_cut))
        if self._stops is not None:
            items += self._stops.finish()
        return self._shown(items)

    def _finish_thought(self, calls: ThoughtCalls, was_cut: bool) -> list[AnswerItem]:
        """Return the rest of reasoning never closed, and the calls in it. was_cut: the token limit
        or a stop string ended the answer."""
        thought, parts = calls.finish(was_cut)
        if parts:
            self._scanner = calls.scanner
            self._reasoning_tokens = self._tokens_before_call
        return [*_reasoning(thought), *self._ended(parts)]

    def ending(self, ending: Ending) -> ChatEnding:
        """Return the answer's ending, with the result for its calls and the number of reasoning
        tokens. REQUIRES: every piece was added, and finish() was called."""
        thought = self._splitter.thought
        tokens = self._reasoning_tokens if thought else 0
        if self._thinking_tokens is not None:
            tokens = min(tokens, self._thinking_tokens)
        if self._found_stop is not None:
            ending = replace(ending, reason=FinishReason.STOP, stop=self._found_stop)
        return ChatEnding(ending, self._scanner.awaits_results, tokens)

    def _shown(self, items: list[AnswerItem]) -> list[AnswerItem]:
        return items if self._whole_calls is None else self._whole_calls.push(items)

    @property
    def _found_stop(self) -> str | None:
        return None if self._stops is None else self._stops.found

    def _parts(self, split: Split) -> list[AnswerItem]:
        items: list[AnswerItem] = []
        calls = self._thought_calls
        if split.reasoning:
            items += _reasoning(split.reasoning if calls is None else calls.push(split.reasoning))
        if calls is not None and not self._splitter.reasoning:
            items += _reasoning(calls.close())
            self._thought_calls = None
        if split.content:
            items += self._content(split.content)
        return items

    def _content(self, text: str) -> list[AnswerItem]:
        if self._stops is None or 0 < self._tokens <= self._min_tokens:
            return self._scanner.push(text)
        items: list[AnswerItem] = []
        # White space before a tag is read before the tag.
        for part in _BEFORE_TAGS.split(text):
            if self._found_stop is None:
                items += self._ended(self._scanner.push(part))
        return items

    def _ended(self, items: list[AnswerItem]) -> list[AnswerItem]:
        """Return the parts before the first stop string in the content."""
        return items if self._stops is None else self._stops.take(items, self._scanner.space)


def _reasoning(text: str) -> list[AnswerItem]:
    return [Reasoning(text)] if text else []
