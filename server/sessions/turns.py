"""What a call does with a session: reads its log's end, appends to it, has a turn answered.

`Sessions` is the same whether the logs are in this process (HeldSessions) or in the node's registry
(server/workers). One event loop's thread.
"""

from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from tasuki.engine.messages import Tokens
from tasuki.server.auth.caller import Caller
from tasuki.server.auth.tenant import TENANT_KEY
from tasuki.server.errors import InvalidField, InvalidRequest, SessionBusy
from tasuki.server.request_checks import check_length
from tasuki.server.text.chat_renderer import ChatRenderer
from tasuki.server.text.text_codec import TextCodec

from .session_store import Session, SessionStore, Tail, Turn
from .token_log import TokenLog


@dataclass(frozen=True)
class SessionInput:
    """tail: of the log afterwards. closing: tokens that end the answer before; the first of them is
    left out where the log already ends with it. marks: token counts within `tokens`."""

    tail: Tail
    tokens: Tokens
    marks: tuple[int, ...] = ()
    closing: tuple[int, ...] = ()

    def behind(self, log: TokenLog) -> tuple[Tokens, tuple[int, ...]]:
        """The tokens to append to that log, and marks among them."""
        closing = self.closing
        if closing and log.ends_with(closing[0]):
            closing = closing[1:]
        tokens = np.concatenate([np.array(closing, dtype=np.int32), self.tokens])
        return tokens, tuple(len(closing) + mark for mark in self.marks)


@dataclass(frozen=True)
class LogEnd:
    """What decides how messages join a log. salt: of the session."""

    tail: Tail
    salt: bytes


@dataclass(frozen=True)
class Appended:
    """Tokens: that were added, and of the whole log."""

    tokens: int
    total: int


@dataclass(frozen=True)
class TurnPrompt:
    """What a turn asks of the engine, as in Submit. label: the session's name for operators."""

    tokens: Tokens
    salt: bytes
    cursor: int
    marks: tuple[int, ...]
    label: str


class OpenTurn(Protocol):
    prompt: TurnPrompt

    def keep(self, answer: Sequence[int]) -> None:
        """The answer joins the log as the turn ends; without it the turn is taken back."""


class Sessions(Protocol):
    async def end(self, caller: Caller, session_id: str) -> LogEnd:
        """Raises UnknownSession, SessionBusy."""

    async def append(
        self, caller: Caller, session_id: str, after: Tail, added: SessionInput
    ) -> Appended:
        """after: the tail under which `added` was read. Raises UnknownSession, SessionBusy,
        PromptTooLong, InvalidRequest."""

    def turn(
        self, caller: Caller, tenant: str | None, session_id: str
    ) -> AbstractAsyncContextManager[OpenTurn]:
        """Inside, the session is held. tenant: of the call. Raises UnknownSession, SessionBusy,
        InvalidRequest."""


class HeldSessions:
    """As Sessions, of a store in this process."""

    def __init__(self, store: SessionStore, codec: TextCodec) -> None:
        self._store = store
        self._codec = codec

    async def end(self, caller: Caller, session_id: str) -> LogEnd:
        session = self._store.idle(caller, session_id)
        return LogEnd(session.tail, session.salt)

    async def append(
        self, caller: Caller, session_id: str, after: Tail, added: SessionInput
    ) -> Appended:
        session = self._store.idle(caller, session_id)
        # Other calls may have changed it since it was read.
        if session.tail is not after:
            raise SessionBusy(
                "session_id has changed while this was read: append one thing after the other"
            )
        before = session.log.length
        tokens, marks = added.behind(session.log)
        check_length("session", before + len(tokens), self._codec)
        if added.tail is Tail.ANSWER:
            self._open_answer(session)
        session.log.append(tokens, marks)
        session.tail = added.tail
        return Appended(session.log.length - before, session.log.length)

    @asynccontextmanager
    async def turn(
        self, caller: Caller, tenant: str | None, session_id: str
    ) -> AsyncIterator["_HeldTurn"]:
        with self._store.turn(caller, session_id) as turn:
            session = turn.session
            if tenant != session.tenant:
                raise InvalidField(
                    TENANT_KEY, "must name the tenant that the session was opened for"
                )
            self._open_answer(session)
            log = session.log
            tokens, marks = log.tokens(), log.marks
            cursor = await self._store.cursor(session)
            yield _HeldTurn(turn, TurnPrompt(tokens, session.salt, cursor, marks, session.label))

    def _open_answer(self, session: Session) -> None:
        """After messages, append the opening of the assistant's turn. A turn that is taken back
        takes the opening with it."""
        if session.tail is Tail.EMPTY:
            raise InvalidRequest("session has no tokens: append text, token_ids or messages first")
        if session.tail is Tail.MESSAGES:
            session.log.append(ChatRenderer(self._codec).answer_opening())


class _HeldTurn:
    def __init__(self, turn: Turn, prompt: TurnPrompt) -> None:
        self._turn = turn
        self.prompt = prompt

    def keep(self, answer: Sequence[int]) -> None:
        self._turn.keep(answer)
