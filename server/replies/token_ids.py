"""The token ids of one choice and of its prompt, as vLLM's `return_token_ids` shows them.

Owns the choice's ids so far. One answer, one thread. Invariant: of a stream's choices each id is in
one, in their order, whether its text came with it or later.
"""

from array import array
from typing import Any

import msgspec

from tasuki.engine.messages import Tokens

_PROMPT = "prompt_token_ids"
_ANSWER = "token_ids"


def prompt_ids(tokens: Tokens) -> msgspec.Raw:
    """Return a prompt's ids as JSON. On any thread: a long prompt holds it for milliseconds."""
    return msgspec.Raw(msgspec.json.encode(tokens.tolist()))


class TokenIds:
    def __init__(self, prompt: msgspec.Raw, *, streamed: bool) -> None:
        """prompt: its ids as JSON. streamed: nothing is kept for `whole`."""
        self._prompt = prompt
        self._streamed = streamed
        self._ids = array("i")
        """Of a stream those that no choice has yet, else all."""

    @property
    def kept_bytes(self) -> int:
        return self._ids.itemsize * len(self._ids)

    def add(self, token: int) -> None:
        self._ids.append(token)

    def of_prompt(self) -> dict[str, Any]:
        """The prompt's, as a field."""
        return {_PROMPT: self._prompt}

    def of_answer(self) -> dict[str, Any]:
        """Those of the whole answer, as a field; of a stream, those that no choice had yet."""
        ids = self._ids.tolist()
        if self._streamed:
            self._ids = array("i")
        return {_ANSWER: ids}
