"""Turns what an engine answers to one request into pieces of text with their tokens, then an
ending. Applies stop strings."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Generic, TypeVar

import msgspec

from tasuki.engine import messages as m
from tasuki.server.errors import RequestAborted

from .stop_strings import StopStrings
from .tokenizer import IncrementalDetokenizer

Item = TypeVar("Item")


class Piece(msgspec.Struct, frozen=True, gc=False):
    """token: the newest; text: what became certain with it, which may lag behind the tokens.

    A struct, since there is one a token."""

    text: str
    token: m.TokenOut | None


@dataclass(frozen=True)
class Ending:
    """reason: STOP or LENGTH. completion_tokens: those up to the end, a stop string's included.
    stop: the stop string that ended it, None where none did."""

    reason: m.FinishReason
    completion_tokens: int
    usage: m.Usage
    stop: str | None = None

    @property
    def is_cut(self) -> bool:
        """Whether its length or a stop string ended it, and not the model."""
        return self.reason is not m.FinishReason.STOP or self.stop is not None


class TextAnswer:
    """One answer, one thread."""

    def __init__(
        self,
        detokenizer: IncrementalDetokenizer,
        stops: StopStrings,
        abort: Callable[[], None],
        min_tokens: int = 0,
    ) -> None:
        """abort: makes the engine end this request; its events go on to their Finished. min_tokens:
        in the text of so many tokens no stop string is looked for."""
        self._detokenizer = detokenizer
        self._stops = stops
        self._abort = abort
        self._min_tokens = min_tokens
        self._stopped = False
        self._count = 0
        self._looks_for_stops = stops.any

    def piece(self, token: m.TokenOut) -> Piece | None:
        """What the next token adds; None behind a stop string, and once stopped."""
        if self._stopped:
            return None
        self._count += 1
        text = self._detokenizer.push(token.token)
        if self._looks_for_stops and self._count > self._min_tokens:
            text = self._stops.push(text)
            if self._stops.found:
                self.stop()
        return Piece(text, token)

    def stop(self) -> None:
        """No more is wanted: the answer ends here, as if the model had ended it."""
        if not self._stopped:
            self._stopped = True
            self._abort()

    def ended(self, end: m.Finished) -> tuple[Piece, Ending]:
        """The text that was held back, and the ending. Raises RequestAborted."""
        if end.reason is m.FinishReason.ABORT and not self._stopped:
            raise RequestAborted("the request was aborted before its answer ended")
        if end.reason is m.FinishReason.STOP and not self._stopped and not self._stops.is_kept:
            self._detokenizer.leave_out_end()
        rest = self._stops.push(self._detokenizer.finish()) + self._stops.finish()
        # What was held back may end in a stop string.
        stopped = self._stopped or self._stops.found is not None
        reason = m.FinishReason.STOP if stopped else end.reason
        return Piece(rest, None), Ending(reason, self._count, end.usage, self._stops.found)


@asynccontextmanager
async def first_look(
    items: AsyncGenerator[Item, None], seconds: float
) -> AsyncIterator[AsyncIterator[Item]]:
    """The same items, closed at the end. Entering raises what the first raises within `seconds`,
    so that an early refusal can still choose the reply's status."""
    async with first_looks([items], seconds) as (looked,):
        yield looked


@asynccontextmanager
async def first_looks(
    streams: Sequence[AsyncGenerator[Item, None]], seconds: float
) -> AsyncIterator[list[AsyncIterator[Item]]]:
    """first_look() of several at once: the first of each is waited for, or what one raises."""
    firsts = [asyncio.ensure_future(anext(items)) for items in streams]
    try:
        await asyncio.wait(firsts, timeout=seconds, return_when=asyncio.FIRST_EXCEPTION)
        for first in firsts:
            if first.done():
                first.result()
        yield [_Looked(first, items) for first, items in zip(firsts, streams, strict=True)]
    finally:
        for first in firsts:
            first.cancel()
        await asyncio.wait(firsts)
        for first in firsts:
            if not first.cancelled():
                first.exception()  # retrieved, or asyncio logs an error that was raised already
        for items in streams:
            await items.aclose()


class _Looked(AsyncIterator[Item], Generic[Item]):
    """The first item and the rest, which cost no more than they do without it."""

    def __init__(self, first: "asyncio.Future[Item]", rest: AsyncIterator[Item]) -> None:
        self._first: asyncio.Future[Item] | None = first
        self._rest = rest

    def __anext__(self) -> Awaitable[Item]:
        if self._first is None:
            return self._rest.__anext__()
        first, self._first = self._first, None
        return first
