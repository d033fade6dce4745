"""What the reader of one request's answer has yet to read.

One event loop's thread; one reader. Invariants: tokens are read in order, and the end after them;
no more than `limit` tokens wait, or the reader is cut off once it has read them.
"""

import asyncio
from collections.abc import Sequence

from tasuki.engine import messages as m

from .errors import ServerError, SlowReader

AnswerPart = Sequence[m.TokenOut] | m.Finished
"""Tokens that waited together, one or more, or the answer's end."""

_MOST_AT_ONCE = 64
"""Tokens that a reader takes at once, so that what it makes of them is bounded too."""


class UnreadAnswer:
    def __init__(self, limit: int) -> None:
        """limit: tokens that may wait."""
        self._limit = limit
        self._tokens: list[m.TokenOut] = []
        self._end: m.Finished | ServerError | None = None
        self._closed = False
        self._reader: asyncio.Future[None] | None = None

    def put(self, token: m.TokenOut) -> bool:
        """False where this token is the one too many; it and later ones are dropped."""
        if self._closed:
            return True
        if len(self._tokens) >= self._limit:
            waiting = f"{self._limit} tokens wait to be read"
            self.end(SlowReader(f"{waiting}: read faster, or ask for fewer tokens"))
            return False
        self._tokens.append(token)
        self._wake()
        return True

    def end(self, end: m.Finished | ServerError) -> None:
        """Nothing comes after it; the first end counts."""
        if not self._closed:
            self._closed = True
            self._end = end
            self._wake()

    def close(self) -> None:
        """The reader has gone: keep nothing more."""
        self._closed = True
        self._tokens.clear()

    async def read(self) -> AnswerPart:
        """The tokens that wait, as soon as there are any, but not too many at once; after the last
        of them the end. Raises the error that the answer ended by."""
        while not self._tokens:
            if isinstance(self._end, ServerError):
                raise self._end
            if self._end is not None:
                return self._end
            self._reader = asyncio.get_running_loop().create_future()
            await self._reader
        taken = self._tokens[:_MOST_AT_ONCE]
        del self._tokens[:_MOST_AT_ONCE]
        return taken

    def _wake(self) -> None:
        if self._reader is not None:
            # Cancelled where the reader's task was, which has yet to run.
            if not self._reader.done():
                self._reader.set_result(None)
            self._reader = None
