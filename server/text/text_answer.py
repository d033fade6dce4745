"""An answer as text: pieces of text with their tokens, an ending, and the parts of a chat's answer.

TextAnswer converts an engine's answer to pieces of text with their tokens, then an ending. It
applies stop strings. Thinking is the answer's thinking state, read from the prompt's end. Pure; any
thread.

The parts of a chat's answer are reasoning, content and tool calls, in the model's order, without
any API's JSON. Immutable values; any thread. Invariants of one answer's parts: reasoning comes
first. The pieces of a call's arguments form the text of one JSON object. They come between its
CallBegin and its CallEnd, with no other part between them. Every call has both. No part is empty
text.

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
"""Text between the closing thinking tag and the answer, as in every template of these models."""


class Thinking(Enum):
    """The thinking state at the end of a prompt. OPENED: the prompt ends inside the thinking tags,
    and the answer continues the thinking. ALLOWED: the template has thinking tags, and the model
    may open them itself. NEVER: the whole answer is content."""

    OPENED = "opened"
    ALLOWED = "allowed"
    NEVER = "never"


def thinking_behind(prompt: str, source: str) -> Thinking:
    """Return the thinking state at the end of a prompt: opened, allowed or never. prompt: rendered
    text with the answer's opening. source: the template's source; without a thinking tag in it, the
    state is never."""
    if END_OF_THINK not in source and THINK not in source:
        return Thinking.NEVER
    end = prompt[-64:].rstrip()
    if end.endswith(THINK):
        return Thinking.OPENED
    return Thinking.NEVER if end.endswith(END_OF_THINK) else Thinking.ALLOWED


Item = TypeVar("Item")


class Piece(msgspec.Struct, frozen=True, gc=False):
    """A piece of an answer's text. token: the newest token; None at the end. text: the text
    completed by the token; it may lag behind the tokens.

    A struct for speed, because one is made for each token.
    """

    text: str
    token: m.TokenOut | None


@dataclass(frozen=True)
class Ending:
    """The end of an answer. reason: STOP or LENGTH. completion_tokens: number of tokens up to the
    end, including those of a stop string. stop: the stop string ending the answer; None if it ended
    otherwise. weights: as in Finished."""

    reason: m.FinishReason
    completion_tokens: int
    usage: m.Usage
    stop: str | None = None
    weights: tuple[m.WeightsRun, ...] = ()

    @property
    def is_cut(self) -> bool:
        """Return True if the token limit or a stop string ended the answer, rather than the
        model."""
        return self.reason is not m.FinishReason.STOP or self.stop is not None


class TextAnswer:
    """Converter of one answer's tokens to pieces of text, up to a stop string. One answer, one
    thread."""

    def __init__(
        self,
        detokenizer: IncrementalDetokenizer,
        stops: StopStrings,
        abort: Notice,
        min_tokens: int = 0,
    ) -> None:
        """detokenizer: converter of tokens to text. stops: scanner for stop strings. abort:
        function to make the engine end this request early; the engine still sends its Finished.
        min_tokens: number of first tokens with their text not searched for stop strings."""
        self._detokenizer = detokenizer
        self._stops = stops
        self._abort = abort
        self._min_tokens = min_tokens
        self._stopped = False
        self._count = 0
        self._looks_for_stops = stops.any

    def piece(self, token: m.TokenOut) -> Piece | None:
        """Return the piece of text with the next token. Return None after a stop string, and after
        stop()."""
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
        """End the answer after the pieces so far, as if the model had ended it."""
        if not self._stopped:
            self._stopped = True
            self._abort()

    def ended(self, end: m.Finished) -> tuple[Piece, Ending]:
        """Return the text held back until now, and the answer's ending. end: the engine's message
        about the end. Raises RequestAborted for an abort without stop()."""
        if end.reason is m.FinishReason.ABORT and not self._stopped:
            raise RequestAborted("the request was aborted before its answer ended")
        if end.reason is m.FinishReason.STOP and not self._stopped and not self._stops.is_kept:
            self._detokenizer.leave_out_end()
        rest = self._stops.push(self._detokenizer.finish()) + self._stops.finish()
        # The text held back may end in a stop string.
        stopped = self._stopped or self._stops.found is not None
        reason = m.FinishReason.STOP if stopped else end.reason
        found = self._stops.found
        return Piece(rest, None), Ending(reason, self._count, end.usage, found, end.weights)


@asynccontextmanager
async def first_look(
    items: AsyncGenerator[Item, None], seconds: float
) -> AsyncIterator[AsyncIterator[Item]]:
    """Yield an iterator over the same items. On entry, wait up to `seconds` for the first item, and
    raise its error, if any. An early rejection can therefore still set the status of the HTTP
    reply. On exit, close `items`."""
    async with first_looks([items], seconds) as (looked,):
        yield looked


@asynccontextmanager
async def first_looks(
    streams: Sequence[AsyncGenerator[Item, None]], seconds: float
) -> AsyncIterator[list[AsyncIterator[Item]]]:
    """Apply first_look() to several streams together. Wait until each has its first item, one has
    failed, or `seconds` have passed. Raise the error of a failed one."""
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
    """An iterator over an awaited first item and the remaining items. The remaining items cost no
    more than without this wrapper."""

    def __init__(self, first: "asyncio.Future[Item]", rest: AsyncIterator[Item]) -> None:
        self._first: asyncio.Future[Item] | None = first
        self._rest = rest

    def __anext__(self) -> Awaitable[Item]:
        if self._first is None:
            return self._rest.__anext__()
        first, self._first = self._first, None
        return first


class Reasoning(NamedTuple):
    """A piece of the model's thinking before its answer, without the tags."""

    text: str


class Content(NamedTuple):
    """A piece of the answer's text for the user."""

    text: str


class CallBegin(NamedTuple):
    """The begin of a tool call in an answer. number: index of the call in the answer, from 0. id:
    identifier of the call, for the message with its result. name: the function's name."""

    number: int
    id: str
    name: str


class CallArguments(NamedTuple):
    """A piece of a tool call's arguments. number: index of the call in the answer. json: a piece of
    the arguments' JSON text, divided at any character."""

    number: int
    json: str


class CallEnd(NamedTuple):
    """The end of a tool call. All its arguments together are one JSON object.

    number: index of the call in the answer. is_cut: the token limit or a stop string ended the
    call, rather than the model. lacks: the arguments lack a required parameter.
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
    """The end of a chat's answer. called: the answer holds at least one tool call, and each may be
    run. reasoning_tokens: number of tokens before the reasoning's end; they are part of
    `completion_tokens`."""

    ending: Ending
    called: bool
    reasoning_tokens: int

    @property
    def awaits_tools(self) -> bool:
        """Return True if the model ended the answer with a tool call to run: OpenAI's `tool_calls`,
        Anthropic's `tool_use`."""
        return self.called and not self.ending.is_cut


_JOINED_AT_ONCE = 64
"""Number of pieces joined in one step. The joined text takes some two bytes for each piece beyond
its characters."""


class GrowingText:
    def __init__(self) -> None:
        self._joined: list[str] = []
        self._pieces: list[str] = []
        self.kept_bytes = 0
        """Bytes of memory of the joined pieces. The last few pieces are not counted."""

    def add(self, piece: str) -> None:
        """Append a piece to the growing text."""
        self._pieces.append(piece)
        if len(self._pieces) >= _JOINED_AT_ONCE:
            joined = "".join(self._pieces)
            self._joined.append(joined)
            self.kept_bytes += sys.getsizeof(joined)
            self._pieces.clear()

    def __str__(self) -> str:
        """Return the whole text."""
        return "".join((*self._joined, *self._pieces))
