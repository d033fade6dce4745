"""An answer as text: pieces with their tokens, an ending, and the parts of a chat's answer.

TextAnswer turns an engine's answer to one request into pieces of text with their tokens, then an
ending. It applies stop strings. Thinking tells from the prompt's end whether an answer begins with
reasoning. Pure; any thread.

The parts of a chat's answer are reasoning, content and tool calls, in the model's order, without
any API's JSON. Immutable values; any thread. Invariants of one answer's parts: reasoning comes
first. The pieces of a call's arguments form one JSON object's text. They come between its CallBegin
and its CallEnd, with no other part between them. Every call has both. No part is empty text.

GrowingText grows by pieces as short as a token, in little more memory than its characters take. A
list of its pieces would take some 60 bytes for each. One text, one thread.
"""

import asyncio
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from enum import Enum
from typing import Generic, NamedTuple, TypeAlias, TypeVar

import msgspec

from tasuki.engine import messages as m
from tasuki.server.errors import RequestAborted
from tasuki.utils.signatures import Notice

from .stop_strings import StopStrings
from .tokenizer import IncrementalDetokenizer

THINK, END_OF_THINK = "<think>", "</think>"
BEHIND_THINKING = "\n\n"
"""Text between a thought and its continuation, as in every template of these models."""


class Thinking(Enum):
    """OPENED: the prompt ends inside the tags, and the answer continues the thought. ALLOWED: the
    template has the tags, and the model may open them itself. NEVER: the whole answer is
    content."""

    OPENED = "opened"
    ALLOWED = "allowed"
    NEVER = "never"


def thinking_behind(prompt: str, source: str) -> Thinking:
    """Return the thinking of an answer: opened, allowed or never. prompt: rendered prompt with the
    answer's opening. source: the template's source."""
    if END_OF_THINK not in source and THINK not in source:
        return Thinking.NEVER
    end = prompt[-64:].rstrip()
    if end.endswith(THINK):
        return Thinking.OPENED
    return Thinking.NEVER if end.endswith(END_OF_THINK) else Thinking.ALLOWED


Item = TypeVar("Item")


class Piece(msgspec.Struct, frozen=True, gc=False):
    """token: the newest token. text: the text made certain by it; the text may lag behind the
    tokens.

    A struct for speed, because one is made for each token.
    """

    text: str
    token: m.TokenOut | None


@dataclass(frozen=True)
class Ending:
    """reason: STOP or LENGTH. completion_tokens: tokens up to the end, including a stop string's.
    stop: the final stop string; None if the answer ended otherwise."""

    reason: m.FinishReason
    completion_tokens: int
    usage: m.Usage
    stop: str | None = None

    @property
    def is_cut(self) -> bool:
        """Return whether the length or a stop string ended the answer, rather than the model."""
        return self.reason is not m.FinishReason.STOP or self.stop is not None


class TextAnswer:
    """One answer, one thread."""

    def __init__(
        self,
        detokenizer: IncrementalDetokenizer,
        stops: StopStrings,
        abort: Notice,
        min_tokens: int = 0,
    ) -> None:
        """abort: makes the engine end this request; its events continue up to Finished. min_tokens:
        the text of the first min_tokens tokens is not searched for stop strings."""
        self._detokenizer = detokenizer
        self._stops = stops
        self._abort = abort
        self._min_tokens = min_tokens
        self._stopped = False
        self._count = 0
        self._looks_for_stops = stops.any

    def piece(self, token: m.TokenOut) -> Piece | None:
        """Return the next token's text. Return None after a stop string, and after stop()."""
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
        """End the answer here, as if the model had ended it."""
        if not self._stopped:
            self._stopped = True
            self._abort()

    def ended(self, end: m.Finished) -> tuple[Piece, Ending]:
        """Return the text held back, and the ending. Raises RequestAborted."""
        if end.reason is m.FinishReason.ABORT and not self._stopped:
            raise RequestAborted("the request was aborted before its answer ended")
        if end.reason is m.FinishReason.STOP and not self._stopped and not self._stops.is_kept:
            self._detokenizer.leave_out_end()
        rest = self._stops.push(self._detokenizer.finish()) + self._stops.finish()
        # The text held back may end in a stop string.
        stopped = self._stopped or self._stops.found is not None
        reason = m.FinishReason.STOP if stopped else end.reason
        return Piece(rest, None), Ending(reason, self._count, end.usage, self._stops.found)


@asynccontextmanager
async def first_look(
    items: AsyncGenerator[Item, None], seconds: float
) -> AsyncIterator[AsyncIterator[Item]]:
    """Yield the same items, closed at the end. Entering raises an error raised by the first item
    within `seconds`. An early refusal can therefore still choose the reply's status."""
    async with first_looks([items], seconds) as (looked,):
        yield looked


@asynccontextmanager
async def first_looks(
    streams: Sequence[AsyncGenerator[Item, None]], seconds: float
) -> AsyncIterator[list[AsyncIterator[Item]]]:
    """Apply first_look() to several streams at once. Wait for the first item of each, or for an
    error of one."""
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
                first.exception()  # retrieved: otherwise asyncio logs an error already raised
        for items in streams:
            await items.aclose()


class _Looked(AsyncIterator[Item], Generic[Item]):
    """The first item and the rest. The rest costs no more than without this wrapper."""

    def __init__(self, first: "asyncio.Future[Item]", rest: AsyncIterator[Item]) -> None:
        self._first: asyncio.Future[Item] | None = first
        self._rest = rest

    def __anext__(self) -> Awaitable[Item]:
        if self._first is None:
            return self._rest.__anext__()
        first, self._first = self._first, None
        return first


class Reasoning(NamedTuple):
    """A piece of the model's thought before its answer, without the tags."""

    text: str


class Content(NamedTuple):
    """A piece of the answer for the user."""

    text: str


class CallBegin(NamedTuple):
    """number: index among the answer's calls, from 0. id: for the message with the call's
    result."""

    number: int
    id: str
    name: str


class CallArguments(NamedTuple):
    """json: a piece of the arguments' text; it may begin and end anywhere in it."""

    number: int
    json: str


class CallEnd(NamedTuple):
    """The end of a call. The call's arguments are one JSON object.

    is_cut: the length or a stop string ended the call, rather than the model. lacks: a required
    parameter is not among the arguments.
    """

    number: int
    is_cut: bool = False
    lacks: bool = False

    @property
    def may_run(self) -> bool:
        return not (self.is_cut or self.lacks)


AnswerItem: TypeAlias = Reasoning | Content | CallBegin | CallArguments | CallEnd


@dataclass(frozen=True)
class ChatEnding:
    """called: the answer holds at least one call, and each may be run. reasoning_tokens: tokens
    before the reasoning's end, among the ending's completion tokens."""

    ending: Ending
    called: bool
    reasoning_tokens: int

    @property
    def awaits_tools(self) -> bool:
        """Return whether the model ended the answer with a call: OpenAI's `tool_calls`, Anthropic's
        `tool_use`."""
        return self.called and not self.ending.is_cut


_JOINED_AT_ONCE = 64
"""Pieces. Joining so many at once adds some two bytes to each."""


class GrowingText:
    def __init__(self) -> None:
        self._joined: list[str] = []
        self._pieces: list[str] = []
        self.kept_bytes = 0
        """Memory of the joined pieces."""

    def add(self, piece: str) -> None:
        """Append a piece to the text."""
        self._pieces.append(piece)
        if len(self._pieces) >= _JOINED_AT_ONCE:
            joined = "".join(self._pieces)
            self._joined.append(joined)
            self.kept_bytes += sys.getsizeof(joined)
            self._pieces.clear()

    def __str__(self) -> str:
        """Return the whole text."""
        return "".join((*self._joined, *self._pieces))
