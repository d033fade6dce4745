"""From an answer's text to its parts, as the text comes: reasoning first, and behind it content and
tool calls, so that no call is made that the model only thought of.

One answer, one thread.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from tasuki.engine.messages import FinishReason
from tasuki.server.text.answer_parts import AnswerItem, ChatEnding, Reasoning
from tasuki.server.text.stop_strings import NO_STOPS, StopRule
from tasuki.server.text.text_answer import Ending, Piece
from tasuki.server.text.thinking import Thinking

from .content_stops import ContentStops
from .reasoning_splitter import ReasoningSplitter, Split
from .thought_calls import ThoughtCalls
from .tool_call_scanner import ToolCallScanner
from .whole_calls import WholeCalls

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
        """tools: the request's definitions; with none, calls are content. parallel_calls: an answer
        may hold more than one; else it is complete with the first. whole_calls: each is held back
        until it is finished. stops: that end the content; neither reasoning nor calls are looked
        at. thinking_tokens: most that may count as reasoning, since tokens behind so many close
        it; None: any number."""
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
        # Those before a call in the reasoning, if one is held back.
        self._tokens_before_call = 0

    @property
    def complete(self) -> bool:
        """Nothing that comes is wanted, and the engine may stop."""
        return self._scanner.full or self._found_stop is not None

    @property
    def may_hold(self) -> bool:
        """Whether text of a length that counts may be held back."""
        return self._thought_calls is not None

    @property
    def held_bytes(self) -> int:
        """Memory of such text now."""
        return 0 if self._thought_calls is None else self._thought_calls.held_bytes

    @property
    def passes_content(self) -> bool:
        """All that comes is content, as it is."""
        return self._splitter.passing and self._scanner.passing and self._stops is None

    def push(self, piece: Piece) -> list[AnswerItem]:
        """The parts that are certain now, in order."""
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
        """Return the parts that were held back, after the last piece."""
        items = self._parts(self._splitter.finish())
        if self._thought_calls is not None and self._splitter.reasoning:
            items += self._finish_thought(self._thought_calls, ending.is_cut)
        else:
            items += self._ended(self._scanner.finish(ending.is_cut))
        if self._stops is not None:
            items += self._stops.finish()
        return self._shown(items)

    def _finish_thought(self, calls: ThoughtCalls, was_cut: bool) -> list[AnswerItem]:
        """Return the rest of a thought that was never closed, and the calls in it."""
        thought, parts = calls.finish(was_cut)
        if parts:
            self._scanner = calls.scanner
            self._reasoning_tokens = self._tokens_before_call
        return [*_reasoning(thought), *self._ended(parts)]

    def ending(self, ending: Ending) -> ChatEnding:
        """REQUIRES: all was pushed, and finish() came."""
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
        # White space before a tag is looked at before the tag is.
        for part in _BEFORE_TAGS.split(text):
            if self._found_stop is None:
                items += self._ended(self._scanner.push(part))
        return items

    def _ended(self, items: list[AnswerItem]) -> list[AnswerItem]:
        """Return the parts up to a stop string."""
        return items if self._stops is None else self._stops.take(items, self._scanner.space)


def _reasoning(text: str) -> list[AnswerItem]:
    return [Reasoning(text)] if text else []
