"""A chat's answer in OpenAI's shape: content, tool calls, logprobs.

Owns the answer so far. Has no part in HTTP. One answer, one thread.
"""

import json
from typing import Any
from uuid import uuid4

from tasuki.engine.messages import FinishReason
from tasuki.server.text.chat_message import ToolCall
from tasuki.server.text.text_answer import Ending, Piece
from tasuki.server.text.tokenizer import Tokenizer
from tasuki.server.text.tool_call_scanner import ToolCallScanner

from .events import TextChoice, to_json
from .reply import ReplyHead
from .usage import chat_logprob


class ChatReply:
    whole_kind = "chat.completion"
    chunk_kind = "chat.completion.chunk"

    def __init__(
        self,
        head: ReplyHead,
        scanner: ToolCallScanner,
        tokenizer: Tokenizer | None,
        top_logprobs: int | None,
    ) -> None:
        """top_logprobs: alternatives a token, 0 or 1; None: no logprobs at all."""
        self.head = head
        self._scanner = scanner
        self._tokenizer = tokenizer
        self._top = top_logprobs
        self._content: list[str] = []
        self._calls: list[dict[str, Any]] = []
        self._logprobs: list[dict[str, Any]] = []

    def opening(self) -> list[bytes]:
        return [to_json(_chunk({"role": "assistant", "content": ""}))]

    def push(self, piece: Piece) -> list[bytes]:
        found = self._scanner.push(piece.text)
        if self._top is None or piece.token is None:
            return [self._choice(item) for item in found]
        entry = chat_logprob(piece.token, self._tokenizer, self._top)
        self._logprobs.append(entry)
        # A token whose text is held back still has its logprob now.
        first, *rest = found or [""]
        chunk = _chunk(self._delta(first), [entry])
        return [to_json(chunk), *map(self._choice, rest)]

    def finish(self, ending: Ending) -> list[bytes]:
        choices = [self._choice(item) for item in self._scanner.finish()]
        return [*choices, to_json({**_chunk({}), "finish_reason": self._reason(ending)})]

    def whole(self, ending: Ending) -> dict[str, Any]:
        content = "".join(self._content)
        message: dict[str, Any] = {"role": "assistant", "content": content}
        if self._calls:
            message["content"] = content or None
            message["tool_calls"] = self._calls
        return {
            "index": 0,
            "message": message,
            "logprobs": None if self._top is None else {"content": self._logprobs},
            "finish_reason": self._reason(ending),
        }

    def _reason(self, ending: Ending) -> str:
        if ending.reason is FinishReason.STOP and self._calls:
            return "tool_calls"
        return ending.reason.value

    def _choice(self, item: str | ToolCall) -> bytes:
        if isinstance(item, str):
            self._content.append(item)
            return _TEXT.holding(item)
        return to_json(_chunk(self._delta(item)))

    def _delta(self, item: str | ToolCall) -> dict[str, Any]:
        if isinstance(item, str):
            self._content.append(item)
            return {"content": item}
        call = _call(item)
        delta = {"tool_calls": [{"index": len(self._calls), **call}]}
        self._calls.append(call)
        return delta


def _call(call: ToolCall) -> dict[str, Any]:
    arguments = json.dumps(call.arguments, ensure_ascii=False)
    return {
        "id": f"call_{uuid4().hex}",
        "type": "function",
        "function": {"name": call.name, "arguments": arguments},
    }


def _chunk(delta: dict[str, Any], logprobs: list[dict[str, Any]] | None = None) -> dict[str, Any]:
    content = None if logprobs is None else {"content": logprobs}
    return {"index": 0, "delta": delta, "logprobs": content, "finish_reason": None}


_TEXT = TextChoice(lambda text: _chunk({"content": text}))
