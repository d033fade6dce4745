"""Which of an answer's tokens a message's text is of, and their logprobs.

A parser gives text out later than its tokens came, and leaves marks out. Owns the tokens whose text
is still to come. One answer, one thread. Invariant: a token is in one message at most, in order.
"""

from collections import deque

import msgspec

from tasuki.engine.messages import TokenOut
from tasuki.server.replies.token_logprobs import TokenNames, token_logprob

_MOST_WAITING = 256
"""Tokens: no mark that is held back is so long."""

_encode = msgspec.json.Encoder().encode


class MessageLogprobs:
    def __init__(self, names: TokenNames) -> None:
        """names: of tokens."""
        self._names = names
        self._waiting: deque[tuple[int, TokenOut]] = deque(maxlen=_MOST_WAITING)
        """Each behind the length of the text that came with it."""
        self._surplus = 0
        """Letters of the token taken last that no message has yet."""

    def add(self, token: TokenOut, text: str) -> None:
        """Take the next token, and what became certain of the text with it."""
        self._waiting.append((len(text), token))

    def drop(self) -> None:
        """What came so far is no message's."""
        self._waiting.clear()
        self._surplus = 0

    def begin(self, text: str) -> None:
        """A message begins with this text: tokens before it are marks."""
        self._surplus = 0
        left = sum(length for length, _ in self._waiting)
        while self._waiting and left - self._waiting[0][0] >= len(text):
            length, _ = self._waiting[0]
            if not length and left == len(text):
                return  # A part of the first character.
            left -= length
            self._waiting.popleft()

    def of(self, text: str) -> bytes:
        """Return those of the message's next text, as JSON, a comma behind each."""
        needed = len(text) - self._surplus
        found = bytearray()
        while needed > 0 and self._waiting:
            length, token = self._waiting.popleft()
            needed -= length
            found += _encode(token_logprob(token, self._names))
            found += b","
        self._surplus = max(0, -needed)
        return bytes(found)
