"""What the reader of one request's answer has yet to read.

One event loop's thread; one reader. Invariants: tokens are taken in order and once, by the reader
or by its sink, and the end after them; no more than `limit` tokens wait, or the reader is cut off
once it has read them.
"""

import asyncio
from collections.abc import Callable, Sequence

from tasuki.engine import messages as m

from .errors import SlowReader

AnswerPart = Sequence[m.TokenOut] | m.Finished
"""Tokens that waited together, one or more, or the answer's end."""

TokenSink = Callable[[Sequence[m.TokenOut]], bool]
"""Takes tokens while the reader waits for some, without waking its task, which costs more than all
else that is done for a token. False where it took none and the reader must. Keeps no list."""

_MOST_AT_ONCE = 64
"""Tokens that are taken at once, so that what is made of them is bounded too."""


class SinkTurn:
    """The event loop's next turn, in which all sinks that have something to take are asked, in one
    callback. Deliveries that are due already come first, and their tokens go along."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._unread: list[UnreadAnswer] = []

    def wait(self, unread: "UnreadAnswer") -> None:
        """Feed it then, once for each call of this."""
        if not self._unread:
            self._loop.call_soon(self._feed)
        self._unread.append(unread)

    def _feed(self) -> None:
        waiting, self._unread = self._unread, []
        for unread in waiting:
            unread.feed()


class UnreadAnswer:
    def __init__(
        self, limit: int, sink: TokenSink | None = None, turn: SinkTurn | None = None
    ) -> None:
        """limit: tokens that may wait. sink: tried before the reader; None: there is none. What
        it raises, the reader gets. turn: that of all answers; None: it has its own."""
        self._limit = limit
        self._sink = sink
        self._loop = asyncio.get_running_loop()
        self._turn = turn or SinkTurn(self._loop)
        self._tokens: list[m.TokenOut] = []
        self._end: m.Finished | Exception | None = None
        self._closed = False
        self._reader: asyncio.Future[None] | None = None
        self._scheduled = False

    def put(self, token: m.TokenOut) -> bool:
        """False where this token is the one too many; it and later ones are dropped."""
        if self._closed:
            return True
        if len(self._tokens) >= self._limit:
            waiting = f"{self._limit} tokens wait to be read"
            self.end(SlowReader(f"{waiting}: read faster, or ask for fewer tokens"))
            return False
        self._tokens.append(token)
        if self._sink is None:
            self._wake()
        elif not self._scheduled:
            self._scheduled = True
            self._turn.wait(self)
        return True

    def end(self, end: m.Finished | Exception) -> None:
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
        if not self._tokens and self._end is None:
            self._reader = self._loop.create_future()
            await self._reader
        if self._tokens:
            taken = self._tokens[:_MOST_AT_ONCE]
            del self._tokens[:_MOST_AT_ONCE]
            return taken
        assert self._end is not None
        if isinstance(self._end, Exception):
            raise self._end
        return self._end

    def feed(self) -> None:
        """The turn has come. REQUIRES: there is a sink."""
        self._scheduled = False
        if self._reader is None or not self._tokens:
            return  # The reader has yet to read what came before, or has read all.
        assert self._sink is not None
        taken = self._tokens if len(self._tokens) <= _MOST_AT_ONCE else self._tokens[:_MOST_AT_ONCE]
        try:
            if self._sink(taken):
                del self._tokens[:_MOST_AT_ONCE]
        except Exception as error:
            # Nobody can know which of them it took.
            self._tokens.clear()
            self.end(error)
        if self._tokens:
            self._wake()

    def _wake(self) -> None:
        if self._reader is not None:
            # Cancelled where the reader's task was, which has yet to run.
            if not self._reader.done():
                self._reader.set_result(None)
            self._reader = None
