"""A chat's answer in OpenAI's shape: reasoning, content, tool calls, logprobs.

Owns the answer so far. Has no part in HTTP. One answer, one thread.
"""

from collections.abc import Sequence
from typing import Any

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
from tasuki.server.text.tokenizer import Tokenizer

from .events import TextChoice, to_json
from .reply import ReplyHead
from .usage import chat_logprob


class ChatReply:
    whole_kind = "chat.completion"
    chunk_kind = "chat.completion.chunk"

    def __init__(
        self,
        head: ReplyHead,
        parser: AnswerParser,
        tokenizer: Tokenizer | None,
        *,
        with_logprobs: bool,
    ) -> None:
        """with_logprobs: of each token, and of as many others as the engine has."""
        self.head = head
        self._parser = parser
        self._tokenizer = tokenizer
        self._with_logprobs = with_logprobs
        self._reasoning: list[str] = []
        self._content: list[str] = []
        self._calls: list[_Call] = []
        self._logprobs: list[dict[str, Any]] = []

    @property
    def complete(self) -> bool:
        return self._parser.complete

    def opening(self) -> list[bytes]:
        return [to_json(_chunk({"role": "assistant", "content": ""}))]

    def push(self, piece: Piece) -> list[bytes]:
        items = self._parser.push(piece)
        if not self._with_logprobs or piece.token is None:
            return self._choices(items)
        entry = chat_logprob(piece.token, self._tokenizer)
        self._logprobs.append(entry)
        shown = [item for item in items if not isinstance(item, CallEnd)]
        # A token whose text is held back still has its logprob now.
        delta = self._delta(shown[0]) if shown else {"content": ""}
        return [to_json(_chunk(delta, [entry])), *self._choices(shown[1:])]

    def finish(self, ending: Ending) -> list[bytes]:
        choices = self._choices(self._parser.finish())
        return [*choices, to_json({**_chunk({}), "finish_reason": self._reason(ending)})]

    def whole(self, ending: Ending) -> dict[str, Any]:
        content = "".join(self._content)
        message: dict[str, Any] = {"role": "assistant", "content": content}
        if self._calls or self._reasoning:
            message["content"] = content or None
        if self._reasoning:
            message.update(_reasoning("".join(self._reasoning)))
        if self._calls:
            message["tool_calls"] = [call.whole() for call in self._calls]
        return {
            "index": 0,
            "message": message,
            "logprobs": {"content": self._logprobs} if self._with_logprobs else None,
            "finish_reason": self._reason(ending),
        }

    def reasoning_tokens(self, ending: Ending) -> int | None:
        return self._parser.ending(ending).reasoning_tokens

    def _reason(self, ending: Ending) -> str:
        awaits_tools = self._parser.ending(ending).awaits_tools
        return "tool_calls" if awaits_tools else ending.reason.value

    def _choices(self, items: Sequence[AnswerItem]) -> list[bytes]:
        return [self._choice(item) for item in items if not isinstance(item, CallEnd)]

    def _choice(self, item: AnswerItem) -> bytes:
        if isinstance(item, Content):
            self._content.append(item.text)
            return _CONTENT.holding(item.text)
        if isinstance(item, Reasoning):
            self._reasoning.append(item.text)
            return _REASONING.holding(item.text)
        return to_json(_chunk(self._delta(item)))

    def _delta(self, item: AnswerItem) -> dict[str, Any]:
        match item:
            case Content(text):
                self._content.append(text)
                return {"content": text}
            case Reasoning(text):
                self._reasoning.append(text)
                return _reasoning(text)
            case CallBegin():
                call = _Call(item)
                self._calls.append(call)
                return {"tool_calls": [{"index": item.number, **call.whole()}]}
            case CallArguments(number, text):
                self._calls[number].arguments.append(text)
                return {"tool_calls": [{"index": number, "function": {"arguments": text}}]}
        raise AssertionError(f"{item} has no delta")


class _Call:
    """arguments: pieces of their text."""

    def __init__(self, begin: CallBegin) -> None:
        self._begin = begin
        self.arguments: list[str] = []

    def whole(self) -> dict[str, Any]:
        function = {"name": self._begin.name, "arguments": "".join(self.arguments)}
        return {"id": self._begin.id, "type": "function", "function": function}


def _reasoning(text: str) -> dict[str, Any]:
    """Under the name that most clients read, and under vLLM's newer one."""
    return {"reasoning_content": text, "reasoning": text}


def _chunk(delta: dict[str, Any], logprobs: list[dict[str, Any]] | None = None) -> dict[str, Any]:
    content = None if logprobs is None else {"content": logprobs}
    return {"index": 0, "delta": delta, "logprobs": content, "finish_reason": None}


_CONTENT = TextChoice(lambda text: _chunk({"content": text}))
_REASONING = TextChoice(lambda text: _chunk(_reasoning(text)))
