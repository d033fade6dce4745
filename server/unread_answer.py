"""What the reader of one request's answer has yet to read.

One event loop's thread; one reader. Invariants: tokens are taken in order and once, by the reader
or by its sink, and the end after them; no more than `limit` tokens wait, or the reader is cut off
once it has read them; of those that wait for long each takes some 30 bytes, and 14 more for each of
its likeliest tokens.
"""

import asyncio
from collections.abc import Callable, Sequence

import msgspec

from tasuki.engine import messages as m
from tasuki.model.ops.sampling.params import TopLogprobs

from .errors import SlowReader

AnswerPart = Sequence[m.TokenOut] | m.Finished
"""Tokens that waited together, one or more, or the answer's end."""

TokenSink = Callable[[Sequence[m.TokenOut]], bool]
"""Takes tokens while the reader waits for some, without waking its task, which costs more than all
else that is done for a token. False where it took none and the reader must. Keeps no list."""

_MOST_AT_ONCE = 64
"""Tokens that are taken at once, so that what is made of them is bounded too."""

_PACKED_AT = 2 * _MOST_AT_ONCE
"""Tokens that wait as objects: a reader that keeps up never has so many."""


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


class _Block(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Tokens of one request, whose id they share."""

    request_id: m.RequestId
    tokens: list[tuple[int, float, float, int, TopLogprobs]]


_write_block = msgspec.msgpack.Encoder().encode
_read_block = msgspec.msgpack.Decoder(_Block).decode


def _packed(tokens: Sequence[m.TokenOut]) -> bytes:
    """Return the tokens as bytes: as objects they take five times the memory."""
    fields = [(one.token, one.logprob, one.margin, one.index, one.top) for one in tokens]
    return _write_block(_Block(tokens[0].request_id, fields))


def _unpacked(packed: bytes) -> list[m.TokenOut]:
    block = _read_block(packed)
    return [m.TokenOut(block.request_id, *fields) for fields in block.tokens]


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
        self._packed: list[bytes] = []
        """The tokens that wait longest, _MOST_AT_ONCE in each."""
        self._tokens: list[m.TokenOut] = []
        """Those behind them."""
        self._most_objects = min(limit, _PACKED_AT)
        """Tokens that wait as objects before some of them are packed, or none may come."""
        self._end: m.Finished | Exception | None = None
        self._closed = False
        self._reader: asyncio.Future[None] | None = None
        self._scheduled = False

    def put(self, token: m.TokenOut) -> bool:
        """False where this token is the one too many; it and later ones are dropped."""
        if self._closed:
            return True
        if len(self._tokens) >= self._most_objects and not self._make_room():
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
        self._clear()

    async def read(self) -> AnswerPart:
        """The tokens that wait, as soon as there are any, but not too many at once; after the last
        of them the end. Raises the error that the answer ended by."""
        if not self._tokens and not self._packed and self._end is None:
            self._reader = self._loop.create_future()
            await self._reader
        if self._tokens or self._packed:
            taken = self._first()
            self._drop_first()
            return taken
        assert self._end is not None
        if isinstance(self._end, Exception):
            raise self._end
        return self._end

    def feed(self) -> None:
        """The turn has come. REQUIRES: there is a sink."""
        self._scheduled = False
        if self._reader is None or not (self._tokens or self._packed):
            return  # The reader has yet to read what came before, or has read all.
        assert self._sink is not None
        waiting = self._tokens
        try:
            if self._packed or len(waiting) > _MOST_AT_ONCE:
                if self._sink(self._first()):
                    self._drop_first()
            elif self._sink(waiting):
                waiting.clear()
        except Exception as error:
            # Which of them it took is unknown.
            self._clear()
            self.end(error)
        if self._tokens or self._packed:
            self._wake()

    def _make_room(self) -> bool:
        """Pack the tokens that are next among those that wait as objects; False where as many
        tokens wait as may."""
        left = self._limit - _MOST_AT_ONCE * len(self._packed)
        if len(self._tokens) >= left:
            return False
        self._packed.append(_packed(self._tokens[:_MOST_AT_ONCE]))
        del self._tokens[:_MOST_AT_ONCE]
        self._most_objects = min(left - _MOST_AT_ONCE, _PACKED_AT)
        return True

    def _first(self) -> list[m.TokenOut]:
        """Return the tokens that are next, which may be the very list of those that wait."""
        if self._packed:
            return _unpacked(self._packed[0])
        waiting = self._tokens
        return waiting if len(waiting) <= _MOST_AT_ONCE else waiting[:_MOST_AT_ONCE]

    def _drop_first(self) -> None:
        """Drop what _first() returned."""
        if self._packed:
            del self._packed[0]
            left = self._limit - _MOST_AT_ONCE * len(self._packed)
            self._most_objects = min(left, _PACKED_AT)
        elif len(self._tokens) <= _MOST_AT_ONCE:
            self._tokens = []
        else:
            del self._tokens[:_MOST_AT_ONCE]

    def _clear(self) -> None:
        self._packed.clear()
        self._tokens.clear()

    def _wake(self) -> None:
        if self._reader is not None:
            # Cancelled where the reader's task was, which has yet to run.
            if not self._reader.done():
                self._reader.set_result(None)
            self._reader = None
