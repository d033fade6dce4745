"""The unread part of one request's answer.

One event loop's thread; one reader. Invariants: tokens are taken in order and once, by the reader
or by its sink, and the answer's end after them. At most `limit` tokens wait; beyond it, the reader
is cut off once it has read them. A token waiting for long takes about 30 bytes, and 14 more for
each of its likeliest tokens.
"""

import asyncio
from collections.abc import Callable, Sequence

import msgspec

from tasuki.engine import messages as m
from tasuki.model.ops.sampling.params import TopLogprobs

from .errors import SlowReader

AnswerPart = Sequence[m.TokenOut] | m.Finished
"""A part of an answer: one or more waiting tokens, or the answer's end."""

TokenSink = Callable[[Sequence[m.TokenOut]], bool]
"""A function to take tokens while the reader's task waits, without waking it. A wakeup costs more
than all other work for a token. Returns False if it took none; then the reader must take them. Must
not keep the list."""

_MOST_AT_ONCE = 64
"""Largest number of tokens taken at once. It bounds the size of a written output too."""

_PACKED_AT = 2 * _MOST_AT_ONCE
"""Largest number of waiting tokens kept as objects; more are packed into bytes. A reader at full
speed never has so many."""


class SinkTurn:
    """The next round of the event loop, shared by answers. All sinks with waiting tokens are called
    in it, in one callback. Deliveries already due come first, and their tokens are included."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._unread: list[UnreadAnswer] = []

    def wait(self, unread: "UnreadAnswer") -> None:
        """Call feed() of `unread` in the next round of the event loop, once for each call of
        wait()."""
        if not self._unread:
            self._loop.call_soon(self._feed)
        self._unread.append(unread)

    def _feed(self) -> None:
        waiting, self._unread = self._unread, []
        for unread in waiting:
            unread.feed()


class _Block(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Some tokens of one request, with the request's id, for packing."""

    request_id: m.RequestId
    tokens: list[tuple[int, float, float, int, TopLogprobs]]


_write_block = msgspec.msgpack.Encoder().encode
_read_block = msgspec.msgpack.Decoder(_Block).decode


def _packed(tokens: Sequence[m.TokenOut]) -> bytes:
    """Return the tokens packed into bytes. Python objects take five times the memory."""
    fields = [(one.token, one.logprob, one.margin, one.index, one.top) for one in tokens]
    return _write_block(_Block(tokens[0].request_id, fields))


def _unpacked(packed: bytes) -> list[m.TokenOut]:
    block = _read_block(packed)
    return [m.TokenOut(block.request_id, *fields) for fields in block.tokens]


class UnreadAnswer:
    def __init__(
        self, limit: int, sink: TokenSink | None = None, turn: SinkTurn | None = None
    ) -> None:
        """Set up an empty answer. limit: largest number of waiting tokens. sink: tried before the
        reader; None: no sink. The reader gets its exceptions. turn: the SinkTurn of all answers;
        None: a new one."""
        self._limit = limit
        self._sink = sink
        self._loop = asyncio.get_running_loop()
        self._turn = turn or SinkTurn(self._loop)
        self._packed: list[bytes] = []
        """The oldest waiting tokens, packed, _MOST_AT_ONCE in each entry."""
        self._tokens: list[m.TokenOut] = []
        """The waiting tokens after the packed ones, as objects."""
        self._most_objects = min(limit, _PACKED_AT)
        """Largest number of waiting tokens as objects. Beyond it, some are packed, or the limit is
        reached."""
        self._end: m.Finished | Exception | None = None
        self._closed = False
        self._reader: asyncio.Future[None] | None = None
        self._scheduled = False

    def put(self, token: m.TokenOut) -> bool:
        """Add a token of the answer. Return True, or False if it exceeds the limit; this token and
        later ones are dropped."""
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
        """Record the answer's end. No token follows it. Only the first call counts."""
        if not self._closed:
            self._closed = True
            self._end = end
            self._wake()

    def close(self) -> None:
        """Drop all waiting and later tokens, because the reader has gone."""
        self._closed = True
        # The traceback of an error has this object. A cycle would keep the request and its media.
        self._end = None
        self._clear()

    async def read(self) -> AnswerPart:
        """Return at most _MOST_AT_ONCE waiting tokens, as soon as there are any. After the last
        token, return the answer's end. Raises the error of the answer."""
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
        """Give waiting tokens to the answer's sink if a reader waits. REQUIRES: there is a sink."""
        self._scheduled = False
        if self._reader is None or not (self._tokens or self._packed):
            return  # The reader has read all, or must read earlier tokens first.
        assert self._sink is not None
        waiting = self._tokens
        try:
            if self._packed or len(waiting) > _MOST_AT_ONCE:
                if self._sink(self._first()):
                    self._drop_first()
            elif self._sink(waiting):
                waiting.clear()
        except Exception as error:
            # The number of tokens taken by the sink is unknown.
            self._clear()
            self.end(error)
        if self._tokens or self._packed:
            self._wake()

    def _make_room(self) -> bool:
        """Pack the oldest of the waiting tokens kept as objects. Return False if the limit is
        reached."""
        left = self._limit - _MOST_AT_ONCE * len(self._packed)
        if len(self._tokens) >= left:
            return False
        self._packed.append(_packed(self._tokens[:_MOST_AT_ONCE]))
        del self._tokens[:_MOST_AT_ONCE]
        self._most_objects = min(left - _MOST_AT_ONCE, _PACKED_AT)
        return True

    def _first(self) -> list[m.TokenOut]:
        """Return the next waiting tokens. The result may be the list of waiting tokens itself."""
        if self._packed:
            return _unpacked(self._packed[0])
        waiting = self._tokens
        return waiting if len(waiting) <= _MOST_AT_ONCE else waiting[:_MOST_AT_ONCE]

    def _drop_first(self) -> None:
        """Drop the waiting tokens returned by _first()."""
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
            # The future is cancelled if the reader's task was cancelled and has not run yet.
            if not self._reader.done():
                self._reader.set_result(None)
            self._reader = None
