"""An answer as text: pieces with their tokens, an ending, and the parts of a chat's answer.

TextAnswer turns an engine's answer to one request into pieces of text with their tokens, then an
ending. It applies stop strings. Thinking shows from the prompt's end whether an answer begins with
reasoning. Pure; any thread.

The parts of a chat's answer are reasoning, content and tool calls, in the model's order, without
any API's JSON. Immutable values; any thread. Invariants of one answer's parts: reasoning comes
first; the pieces of a call's arguments are together one JSON object's text, and stand between its
CallBegin and its CallEnd with no other part among them; every call has both; no part is empty text.

GrowingText grows by pieces as short as a token, in little more memory than its letters take. A list
of its pieces would take some 60 bytes for each. One text, one thread.
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
"""Between a thought and what follows it, as every template of these models writes it."""


class Thinking(Enum):
    """OPENED: the prompt ends inside the tags, and the answer goes on there. ALLOWED: the template
    knows the tags, and the model may open them itself. NEVER: the whole answer is content."""

    OPENED = "opened"
    ALLOWED = "allowed"
    NEVER = "never"


def thinking_behind(prompt: str, source: str) -> Thinking:
    """prompt: as rendered, with the answer's opening. source: the template's."""
    if END_OF_THINK not in source and THINK not in source:
        return Thinking.NEVER
    end = prompt[-64:].rstrip()
    if end.endswith(THINK):
        return Thinking.OPENED
    return Thinking.NEVER if end.endswith(END_OF_THINK) else Thinking.ALLOWED


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
        abort: Notice,
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


class Reasoning(NamedTuple):
    """A piece of what the model thought before it answered, its tags left out."""

    text: str


class Content(NamedTuple):
    """A piece of the answer that a user reads."""

    text: str


class CallBegin(NamedTuple):
    """number: of the answer's calls, from 0. id: for the message that answers it."""

    number: int
    id: str
    name: str


class CallArguments(NamedTuple):
    """json: a piece of the arguments' text, which may begin and end anywhere in it."""

    number: int
    json: str


class CallEnd(NamedTuple):
    """The call's arguments are one JSON object.

    is_cut: a length or a stop string ended the call, and not the model. lacks: a required parameter
    is not among the arguments."""

    number: int
    is_cut: bool = False
    lacks: bool = False

    @property
    def may_run(self) -> bool:
        return not (self.is_cut or self.lacks)


AnswerItem: TypeAlias = Reasoning | Content | CallBegin | CallArguments | CallEnd


@dataclass(frozen=True)
class ChatEnding:
    """called: the answer holds at least one call, and each may be run. reasoning_tokens: of the
    ending's completion tokens, those before the reasoning's end."""

    ending: Ending
    called: bool
    reasoning_tokens: int

    @property
    def awaits_tools(self) -> bool:
        """OpenAI's `tool_calls`, Anthropic's `tool_use`: the model ended it, with a call."""
        return self.called and not self.ending.is_cut


_JOINED_AT_ONCE = 64
"""Pieces; a joined part then adds some two bytes to each."""


class GrowingText:
    def __init__(self) -> None:
        self._joined: list[str] = []
        self._pieces: list[str] = []
        self.kept_bytes = 0
        """Memory of the pieces that were joined."""

    def add(self, piece: str) -> None:
        """Put a piece behind the text."""
        self._pieces.append(piece)
        if len(self._pieces) >= _JOINED_AT_ONCE:
            joined = "".join(self._pieces)
            self._joined.append(joined)
            self.kept_bytes += sys.getsizeof(joined)
            self._pieces.clear()

    def __str__(self) -> str:
        """Return the whole text."""
        return "".join((*self._joined, *self._pieces))
