"""A token's logprob and those of the likeliest in its place, as chats and responses show them.

Pure functions and immutable values.
"""

import math
from dataclasses import dataclass
from typing import Any

from tasuki.engine import messages as m
from tasuki.server.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class TokenNames:
    """How logprobs name tokens. as_ids: by their ids, which differ where texts do not, as vLLM's
    `return_tokens_as_token_ids` has it; else by their texts."""

    tokenizer: Tokenizer | None
    as_ids: bool = False

    def name(self, token: int) -> str:
        """A torn character as U+FFFD; nothing for a special token."""
        return f"token_id:{token}" if self.as_ids else self.text(token)

    def text(self, token: int) -> str:
        return self.content(token).decode(errors="replace")

    def content(self, token: int) -> bytes:
        return b"" if self.tokenizer is None else self.tokenizer.token_bytes(token)


def token_logprob(token: m.TokenOut, names: TokenNames) -> dict[str, Any]:
    """With the likeliest tokens, as many as the engine has."""
    top = [_entry(other, logprob, names) for other, logprob in token.top]
    return {**_entry(token.token, token.logprob, names), "top_logprobs": top}


def _entry(token: int, logprob: float, names: TokenNames) -> dict[str, Any]:
    content = list(names.content(token))
    return {"token": names.name(token), "logprob": json_logprob(logprob), "bytes": content}


def json_logprob(logprob: float) -> float:
    """JSON has no NaN and no infinity; OpenAI's own stand-in for a token that cannot be."""
    return logprob if math.isfinite(logprob) else -9999.0
