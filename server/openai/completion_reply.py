"""A plain completion's answer in OpenAI's shape: text and logprobs.

Owns the answer so far. Has no part in HTTP. One answer, one thread.
"""

from typing import Any

from tasuki.engine.messages import TokenOut
from tasuki.server.text.text_answer import Ending, Piece
from tasuki.server.text.tokenizer import Tokenizer

from .events import TextChoice, to_json
from .reply import ReplyHead
from .usage import json_logprob, token_text

_LOGPROBS = ("tokens", "token_logprobs", "top_logprobs", "text_offset")


class CompletionReply:
    whole_kind = chunk_kind = "text_completion"
    complete = False

    def __init__(
        self, head: ReplyHead, tokenizer: Tokenizer | None, *, with_logprobs: bool
    ) -> None:
        """with_logprobs: of each token, and of as many others as the engine has."""
        self.head = head
        self._tokenizer = tokenizer
        self._with_logprobs = with_logprobs
        self._texts: list[str] = []
        self._offset = 0
        self._logprobs: dict[str, list[Any]] = {name: [] for name in _LOGPROBS}

    def opening(self) -> list[bytes]:
        return []

    def push(self, piece: Piece) -> list[bytes]:
        self._texts.append(piece.text)
        if not self._with_logprobs or piece.token is None:
            return [_TEXT.holding(piece.text)] if piece.text else []
        text, _ = token_text(piece.token.token, self._tokenizer)
        logprobs: dict[str, list[Any]] = {
            "tokens": [text],
            "token_logprobs": [json_logprob(piece.token.logprob)],
            "top_logprobs": [self._alternatives(piece.token)],
            "text_offset": [self._offset],
        }
        self._offset += len(text)
        for name, values in logprobs.items():
            self._logprobs[name] += values
        return [to_json({**_choice(piece.text), "logprobs": logprobs})]

    def finish(self, ending: Ending) -> list[bytes]:
        return [to_json({**_choice(""), "finish_reason": ending.reason.value})]

    def whole(self, ending: Ending) -> dict[str, Any]:
        return {
            **_choice("".join(self._texts)),
            "logprobs": self._logprobs if self._with_logprobs else None,
            "finish_reason": ending.reason.value,
        }

    def reasoning_tokens(self, ending: Ending) -> None:
        """A completion is not taken apart."""

    def _alternatives(self, token: TokenOut) -> dict[str, float]:
        """By their texts, which as in OpenAI's own answer may be one more than was asked for: the
        token that was drawn has its logprob too."""
        named = (*token.top, (token.token, token.logprob)) if token.top else ()
        return {
            token_text(alternative, self._tokenizer)[0]: json_logprob(logprob)
            for alternative, logprob in reversed(named)
        }


def _choice(text: str) -> dict[str, Any]:
    return {"index": 0, "text": text, "logprobs": None, "finish_reason": None}


_TEXT = TextChoice(_choice)
