"""From an answer's text to its parts, as the text comes: reasoning first, and behind it content and
tool calls, so that no call is made that the model only thought of.

One answer, one thread.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from tasuki.server.text.answer_parts import AnswerItem, ChatEnding, Reasoning
from tasuki.server.text.text_answer import Ending, Piece
from tasuki.server.text.thinking import Thinking

from .reasoning_splitter import ReasoningSplitter, Split
from .tool_call_scanner import ToolCallScanner
from .whole_calls import WholeCalls


class AnswerParser:
    def __init__(
        self,
        thinking: Thinking,
        tools: Sequence[Mapping[str, Any]],
        *,
        parallel_calls: bool = True,
        whole_calls: bool = False,
    ) -> None:
        """tools: the request's definitions; with none, calls are content. parallel_calls: an answer
        may hold more than one; else it is complete with the first. whole_calls: each is held back
        until it is finished."""
        self.may_complete = not parallel_calls
        self._splitter = ReasoningSplitter(thinking)
        self._scanner = ToolCallScanner(tools, None if parallel_calls else 1)
        self._whole_calls = WholeCalls() if whole_calls else None
        self._reasoning_tokens = 0

    @property
    def complete(self) -> bool:
        """Nothing that comes is wanted, and the engine may stop."""
        return self._scanner.full

    @property
    def passes_content(self) -> bool:
        """All that comes is content, as it is."""
        return self._splitter.passing and self._scanner.passing

    def push(self, piece: Piece) -> list[AnswerItem]:
        """The parts that are certain now, in order."""
        if self._splitter.passing:
            return self._shown(self._scanner.push(piece.text))
        items = self._shown(self._parts(self._splitter.push(piece.text)))
        if self._splitter.reasoning and piece.token is not None:
            self._reasoning_tokens += 1
        return items

    def finish(self, ending: Ending) -> list[AnswerItem]:
        """Return the parts that were held back, after the last piece."""
        rest = self._parts(self._splitter.finish())
        return self._shown([*rest, *self._scanner.finish(ending.is_cut)])

    def ending(self, ending: Ending) -> ChatEnding:
        """REQUIRES: all was pushed."""
        thought = self._splitter.thought
        tokens = self._reasoning_tokens if thought else 0
        return ChatEnding(ending, self._scanner.awaits_results, tokens)

    def _shown(self, items: list[AnswerItem]) -> list[AnswerItem]:
        return items if self._whole_calls is None else self._whole_calls.push(items)

    def _parts(self, split: Split) -> list[AnswerItem]:
        items: list[AnswerItem] = []
        if split.reasoning:
            items.append(Reasoning(split.reasoning))
        if split.content:
            items += self._scanner.push(split.content)
        return items
