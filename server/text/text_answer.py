"""Turns the engine's events of one answer into pieces of text with their tokens, then an ending.

Applies stop strings. Whatever ends the answer early (a client that leaves, a failed write) closes
the engine's iterator, which aborts the request.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from typing import TypeVar

from tasuki.engine import messages as m
from tasuki.server.errors import RequestAborted

from .stop_strings import StopStrings
from .tokenizer import IncrementalDetokenizer

Item = TypeVar("Item")


@dataclass(frozen=True)
class Piece:
    """token: the newest; text: what became certain with it, which may lag behind the tokens."""

    text: str
    token: m.TokenOut | None


@dataclass(frozen=True)
class Ending:
    """reason: STOP or LENGTH. completion_tokens: those up to the end, a stop string's included."""

    reason: m.FinishReason
    completion_tokens: int
    usage: m.Usage


async def text_answer(
    events: AsyncGenerator[m.TokenOut | m.Finished, None],
    detokenizer: IncrementalDetokenizer,
    stops: StopStrings,
    abort: Callable[[], None],
) -> AsyncGenerator[Piece | Ending, None]:
    """Pieces, then one Ending. Raises what the events raise, and RequestAborted.

    abort: makes the engine end this request; its events go on to their Finished.
    """
    count = 0
    async with aclosing(events):
        async for event in events:
            if isinstance(event, m.TokenOut):
                if stops.found:
                    continue
                count += 1
                text = stops.push(detokenizer.push(event.token))
                if stops.found:
                    abort()
                yield Piece(text, event)
                continue
            if event.reason is m.FinishReason.ABORT and not stops.found:
                raise RequestAborted("the request was aborted before its answer ended")
            yield Piece(stops.push(detokenizer.finish()) + stops.finish(), None)
            reason = m.FinishReason.STOP if stops.found else event.reason
            yield Ending(reason, count, event.usage)


@asynccontextmanager
async def first_look(
    items: AsyncGenerator[Item, None], seconds: float
) -> AsyncIterator[AsyncIterator[Item]]:
    """The same items, closed at the end. Entering raises what the first raises within `seconds`,
    so that an early refusal can still choose the reply's status."""
    async with aclosing(items):
        first = asyncio.ensure_future(anext(items))
        try:
            await asyncio.wait((first,), timeout=seconds)
            if first.done():
                first.result()
            yield _chained(first, items)
        finally:
            first.cancel()
            await asyncio.wait((first,))
            if not first.cancelled():
                first.exception()  # retrieved, or asyncio logs an error that was raised already


async def _chained(first: "asyncio.Future[Item]", rest: AsyncIterator[Item]) -> AsyncIterator[Item]:
    yield await first
    async for item in rest:
        yield item
