"""A conversation's tokens: grows at the end, is read without a copy."""

import numpy as np

from tasuki.engine.messages import Tokens


class TokenLog:
    """Owns int32 tokens and the marks among them. One thread writes.

    Invariants: tokens once read through `tokens()` never change under the reader, on any thread;
    the buffer is at most twice as long as the log has been, or 256, however often it was truncated.
    """

    def __init__(self) -> None:
        self._buffer: Tokens = np.empty(256, dtype=np.int32)
        self._marks: list[int] = []
        self._read = 0
        self.length = 0

    def append(self, tokens: Tokens, marks: tuple[int, ...] = ()) -> None:
        """marks: token counts within `tokens`, ascending."""
        end = self.length + len(tokens)
        if end > len(self._buffer):
            self._move(max(end, 2 * len(self._buffer)))
        elif self.length < self._read:
            self._move(len(self._buffer))
        self._buffer[self.length : end] = tokens
        self._marks += [self.length + mark for mark in marks]
        self.length = end

    def _move(self, size: int) -> None:
        """Go on in a buffer of that size; readers keep theirs."""
        buffer = np.empty(size, dtype=np.int32)
        buffer[: self.length] = self._buffer[: self.length]
        self._buffer = buffer
        self._read = self.length

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
    def capacity(self) -> int:
        """Tokens that the memory held now has room for."""
        return len(self._buffer)

    @property
    def marks(self) -> tuple[int, ...]:
        return tuple(self._marks)

    def copy(self) -> "TokenLog":
        """An independent log with the same content."""
        twin = TokenLog()
        twin.append(self._buffer[: self.length])
        twin._marks = [*self._marks]
        return twin
