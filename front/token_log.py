"""A conversation's tokens: grows at the end, is read without a copy."""

import numpy as np

from ..engine.messages import Tokens


class TokenLog:
    """Owns int32 tokens and the marks among them. One thread writes.

    Invariant: tokens once read through `tokens()` never change under the reader, on any thread.
    """

    def __init__(self) -> None:
        self._buffer: Tokens = np.empty(256, dtype=np.int32)
        self._marks: list[int] = []
        self._read = 0
        self.length = 0

    def append(self, tokens: Tokens, marks: tuple[int, ...] = ()) -> None:
        """marks: token counts within `tokens`, ascending."""
        end = self.length + len(tokens)
        if end > len(self._buffer) or self.length < self._read:
            grown = np.empty(max(end, 2 * len(self._buffer)), dtype=np.int32)
            grown[: self.length] = self._buffer[: self.length]
            self._buffer = grown
            self._read = self.length
        self._buffer[self.length : end] = tokens
        self._marks += [self.length + mark for mark in marks]
        self.length = end

    def truncate(self, length: int) -> None:
        """Take back what came after `length` tokens."""
        self.length = length
        while self._marks and self._marks[-1] > length:
            self._marks.pop()

    def tokens(self) -> Tokens:
        """Read-only int32 [length], sharing memory."""
        view = self._buffer[: self.length]
        view.flags.writeable = False
        self._read = max(self._read, self.length)
        return view

    def ends_with(self, token: int) -> bool:
        return self.length > 0 and int(self._buffer[self.length - 1]) == token

    @property
    def marks(self) -> tuple[int, ...]:
        return tuple(self._marks)

    def copy(self) -> "TokenLog":
        """An independent log with the same content."""
        twin = TokenLog()
        twin.append(self._buffer[: self.length])
        twin._marks = [*self._marks]
        return twin
