"""A chat's answer in OpenAI's shape: reasoning, content, tool calls, logprobs.

Owns the answer so far. Has no part in HTTP. One answer, one thread.
"""

from collections.abc import Sequence
from typing import Any

import msgspec

from tasuki.server.replies.growing_text import GrowingText
from tasuki.server.replies.scored_prompt import ScoredPrompt, json_prompt_logprobs
from tasuki.server.replies.token_logprobs import TokenNames, token_logprob
from tasuki.server.text.answer_parts import (
    AnswerItem,
    CallArguments,
    CallBegin,
    CallEnd,
    Content,
    Reasoning,
)
from tasuki.server.text.parsing.answer_parser import AnswerParser
from tasuki.server.text.text_answer import Ending, Piece

from .events import TextChoice, to_json
from .reply import ReplyHead

_CALL_BYTES = 500
"""Of a call without its arguments."""


class ChatReply:
    whole_kind = "chat.completion"
    chunk_kind = "chat.completion.chunk"
    prompt_in_choice = False

    def __init__(
        self,
        head: ReplyHead,
        parser: AnswerParser,
        names: TokenNames,
        index: int = 0,
        *,
        with_logprobs: bool,
        streamed: bool,
        with_reasoning: bool = True,
        prompt_logprobs: tuple[ScoredPrompt, int] | None = None,
    ) -> None:
        """names: of tokens in logprobs. index: of the choice. with_logprobs: of each token, and of
        as many others as the engine has. streamed: nothing is kept for `whole`, so that memory does
        not grow with the answer. with_reasoning: the reply has the reasoning's text, not its count
        of tokens alone.
        prompt_logprobs: the reply has those of this prompt, with so many of the likeliest in each
        place."""
        self.head = head
        self.may_complete = parser.may_complete
        self._index = index
        self._content_choice = TextChoice(lambda text: self._chunk({"content": text}))
        self._reasoning_choice = TextChoice(lambda text: self._chunk(_reasoning(text)))
        # Of the call that is open.
        self._arguments_choice = TextChoice(lambda text: self._chunk(_arguments(0, text)))
        self._arguments_number = 0
        self._parser = parser
        self._names = names
        self._with_logprobs = with_logprobs
        self._prompt_logprobs = prompt_logprobs
        self._with_reasoning = with_reasoning
        self.keeps = not streamed or parser.may_hold
        self.is_streamed = streamed
        self.plain: TextChoice | None = None
        self._content = GrowingText()
        self._reasoning = GrowingText()
        self._calls: list[tuple[CallBegin, GrowingText]] = []
        self._arguments_bytes = 0
        self._logprobs = bytearray()
        """JSON, a comma behind each: as objects they would take five times the memory."""

    @property
    def complete(self) -> bool:
        return self._parser.complete

    def opening(self) -> list[bytes]:
        return [to_json(self._chunk({"role": "assistant", "content": ""}))]

    def push(self, piece: Piece) -> list[bytes]:
        items = self._kept(self._parser.push(piece))
        if not self._with_logprobs or piece.token is None:
            if self.is_streamed and not self._with_logprobs and self._parser.passes_content:
                self.plain = self._content_choice
            return self._choices(items)
        entry = token_logprob(piece.token, self._names)
        if not self.is_streamed:
            self._logprobs += to_json(entry) + b","
        shown = [item for item in items if not isinstance(item, CallEnd)]
        # A token whose text is held back still has its logprob now.
        delta = _delta(shown[0]) if shown else {"content": ""}
        return [to_json(self._chunk(delta, [entry])), *self._choices(shown[1:])]

    def finish(self, ending: Ending) -> list[bytes]:
        choices = self._choices(self._kept(self._parser.finish(ending)))
        return [*choices, to_json({**self._chunk({}), "finish_reason": self._reason(ending)})]

    def whole(self, ending: Ending) -> dict[str, Any]:
        content, reasoning = str(self._content), str(self._reasoning)
        calls = [_call(begin, str(arguments)) for begin, arguments in self._calls]
        message: dict[str, Any] = {"role": "assistant", "content": content}
        if calls or reasoning:
            message["content"] = content or None
        message.update(_reasoning(reasoning or None))
        if calls:
            message["tool_calls"] = calls
        return {
            "index": self._index,
            "message": message,
            "logprobs": {"content": self._whole_logprobs()} if self._with_logprobs else None,
            "finish_reason": self._reason(ending),
        }

    def _whole_logprobs(self) -> msgspec.Raw:
        return msgspec.Raw(b"[" + self._logprobs.removesuffix(b",") + b"]")

    @property
    def kept_bytes(self) -> int:
        texts = self._content.kept_bytes + self._reasoning.kept_bytes
        kept = len(self._logprobs) + texts + self._arguments_bytes
        return kept + self._parser.held_bytes

    def beside_choices(self) -> dict[str, Any]:
        if self._prompt_logprobs is None:
            return {}
        tokenizer = self._names.tokenizer
        return {"prompt_logprobs": json_prompt_logprobs(*self._prompt_logprobs, tokenizer)}

    def reasoning_tokens(self, ending: Ending) -> int | None:
        return self._parser.ending(ending).reasoning_tokens

    def _reason(self, ending: Ending) -> str:
        end = self._parser.ending(ending)
        return "tool_calls" if end.awaits_tools else end.ending.reason.value

    def _kept(self, items: list[AnswerItem]) -> list[AnswerItem]:
        """The items that the reply has."""
        if not self._with_reasoning:
            items = [item for item in items if not isinstance(item, Reasoning)]
        if self.is_streamed:
            return items
        for item in items:
            match item:
                case Content(text):
                    self._content.add(text)
                case Reasoning(text):
                    self._reasoning.add(text)
                case CallBegin():
                    self._calls.append((item, GrowingText()))
                    self._arguments_bytes += _CALL_BYTES
                case CallArguments(number, text):
                    self._calls[number][1].add(text)
                    self._arguments_bytes += len(text)
        return items

    def _choices(self, items: Sequence[AnswerItem]) -> list[bytes]:
        return [self._choice(item) for item in items if not isinstance(item, CallEnd)]

    def _choice(self, item: AnswerItem) -> bytes:
        if isinstance(item, Content):
            return self._content_choice.holding(item.text)
        if isinstance(item, Reasoning):
            return self._reasoning_choice.holding(item.text)
        if isinstance(item, CallArguments):
            if item.number != self._arguments_number:
                self._arguments_number = item.number
                self._arguments_choice = TextChoice(
                    lambda text: self._chunk(_arguments(self._arguments_number, text))
                )
            return self._arguments_choice.holding(item.json)
        return to_json(self._chunk(_delta(item)))

    def _chunk(
        self, delta: dict[str, Any], logprobs: list[dict[str, Any]] | None = None
    ) -> dict[str, Any]:
        content = None if logprobs is None else {"content": logprobs}
        return {"index": self._index, "delta": delta, "logprobs": content, "finish_reason": None}


def _delta(item: AnswerItem) -> dict[str, Any]:
    match item:
        case Content(text):
            return {"content": text}
        case Reasoning(text):
            return _reasoning(text)
        case CallBegin(number):
            return {"tool_calls": [{"index": number, **_call(item, "")}]}
        case CallArguments(number, text):
            return _arguments(number, text)
    raise AssertionError(f"{item} has no delta")


def _arguments(number: int, text: str) -> dict[str, Any]:
    return {"tool_calls": [{"index": number, "function": {"arguments": text}}]}


def _call(begin: CallBegin, arguments: str) -> dict[str, Any]:
    function = {"name": begin.name, "arguments": arguments}
    return {"id": begin.id, "type": "function", "function": function}


def _reasoning(text: str | None) -> dict[str, Any]:
    """Under the name that most clients read, and under vLLM's newer one."""
    return {"reasoning_content": text, "reasoning": text}
