"""Sessions: the server's copy of a conversation as tokens, and the calls on it.

TokenLog: a conversation's tokens. It grows at the end and is read without a copy.

SessionStore owns the token logs and their cursors in the engine. Independent of protobuf, text and
templates. One event loop's thread. Invariants: a log only grows, except that an unfinished turn is
removed. A session has one turn at a time. Every opened cursor is closed once. A cursor covers only
tokens of its log, so it is closed when a turn is removed. A session is visible only to its opener.

Sessions: reads a log's end, appends to it, and opens a turn. The interface is the same for logs in
this process (HeldSessions) and in the node's registry (server/workers). One event loop's thread.
"""

import itertools
import secrets
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from dataclasses import dataclass
from enum import Enum
from typing import NewType, Protocol

import numpy as np

from tasuki.engine.messages import PromptPicture, Tokens
from tasuki.server.auth.callers import Caller
from tasuki.server.auth.tenants import TENANT_KEY
from tasuki.server.pictures.kept_pictures import SessionPictures, moved
from tasuki.server.text.chat_renderer import ChatRenderer
from tasuki.server.text.text_codec import TextCodec
from tasuki.utils.signatures import Clock

from .engine_client import EngineClient
from .errors import InvalidField, InvalidRequest, SessionBusy, SessionLimit, UnknownSession
from .request_checks import check_length


class TokenLog:
    """The tokens of a conversation, int32, and their marks (token counts at message boundaries).
    One thread writes.

    Invariants: tokens once read through `tokens()` never change under the reader, on any thread.
    The buffer is at most twice the log's largest length, or 256, however often it was truncated.
    """

    def __init__(self) -> None:
        self._buffer: Tokens = np.empty(256, dtype=np.int32)
        self._marks: list[int] = []
        self._read = 0
        self.length = 0

    def append(self, tokens: Tokens, marks: tuple[int, ...] = ()) -> None:
        """Append tokens to the log. marks: token counts within `tokens`, ascending."""
        end = self.length + len(tokens)
        if end > len(self._buffer):
            self._move(max(end, 2 * len(self._buffer)))
        elif self.length < self._read:
            self._move(len(self._buffer))
        self._buffer[self.length : end] = tokens
        self._marks += [self.length + mark for mark in marks]
        self.length = end

    def _move(self, size: int) -> None:
        """Copy the log to a new buffer of `size` tokens, and continue there. Readers keep the old
        buffer."""
        buffer = np.empty(size, dtype=np.int32)
        buffer[: self.length] = self._buffer[: self.length]
        self._buffer = buffer
        self._read = self.length

    def truncate(self, length: int) -> None:
        """Remove all tokens and marks of the log after its first `length` tokens."""
        self.length = length
        while self._marks and self._marks[-1] > length:
            self._marks.pop()

    def tokens(self) -> Tokens:
        """Return the log's tokens, read-only int32 [length], sharing the log's memory."""
        view = self._buffer[: self.length]
        view.flags.writeable = False
        self._read = max(self._read, self.length)
        return view

    def ends_with(self, token: int) -> bool:
        return self.length > 0 and int(self._buffer[self.length - 1]) == token

    @property
    def capacity(self) -> int:
        """Return the size of the log's present buffer in tokens."""
        return len(self._buffer)

    @property
    def marks(self) -> tuple[int, ...]:
        return tuple(self._marks)

    def copy(self) -> "TokenLog":
        """Return an independent log with the same content."""
        twin = TokenLog()
        twin.append(self._buffer[: self.length])
        twin._marks = [*self._marks]
        return twin


SessionId = NewType("SessionId", str)


class Tail(Enum):
    """The kind of a session log's end. It decides how chat messages join the log."""

    EMPTY = "empty"
    TOKENS = "tokens"
    MESSAGES = "messages"
    ANSWER = "answer"


@dataclass
class Session:
    """One session of a caller. owner: name of the caller who opened it. busy: a turn is being
    answered, and the log may not change until it ends. cursor: number of its cursor in the engine;
    None after a removed turn, until the next one. label: its name for operators, because its id is
    a secret. tenant: tenant of its prompts; the salt is derived from it. pictures: those of the
    log."""

    id: SessionId
    owner: str
    log: TokenLog
    salt: bytes
    cursor: int | None
    tail: Tail
    last_used: float
    label: str
    tenant: str | None
    pictures: SessionPictures
    busy: bool = False


class Turn:
    """One turn of a session. The session is busy inside `with`. At the end of `with` the log is cut
    back to its length before the turn, unless `keep` was called."""

    def __init__(self, session: Session, store: "SessionStore") -> None:
        self.session = session
        self._length = session.log.length
        self._tail = session.tail
        self._store = store
        self._kept = False

    def __enter__(self) -> "Turn":
        self.session.busy = True
        return self

    def keep(self, answer: Sequence[int]) -> None:
        """Append the answer to the session's log."""
        self.session.log.append(np.array(answer, dtype=np.int32))
        self.session.tail = Tail.ANSWER
        self._kept = True

    def __exit__(self, *_: object) -> None:
        self.session.busy = False
        if not self._kept:
            self.session.log.truncate(self._length)
            self.session.tail = self._tail
        self._store.turn_ended(self.session, self._kept)


SESSIONS_OF_PICTURES = 16
"""Number of sessions with whole budgets of picture files. Beyond it, the least recently used ones
lose theirs."""


class SessionStore:
    def __init__(
        self,
        engine: EngineClient,
        clock: Clock,
        max_sessions: int = 1024,
        idle_seconds: float = 3600.0,
        sessions_per_key: int = 0,
        picture_bytes: int = 64 * 2**20,
    ) -> None:
        """Set up the store. idle_seconds: after this time without use, a session may be closed for
        a new one. sessions_per_key: largest number of sessions for each of several keys; 0: no
        limit. picture_bytes: budget of one session's picture files; all together have
        SESSIONS_OF_PICTURES times as much."""
        self._engine = engine
        self._clock = clock
        self._max_sessions = max_sessions
        self._idle_seconds = idle_seconds
        self._sessions: dict[SessionId, Session] = {}
        self._per_key = sessions_per_key
        self._picture_bytes = picture_bytes
        self._opening: Counter[str] = Counter()
        self._numbers = itertools.count(1)

    def __len__(self) -> int:
        return len(self._sessions)

    async def open(self, caller: Caller, salt: bytes, tenant: str | None = None) -> Session:
        """Open a session of the caller. salt: salt of its prompts. Raises SessionLimit."""
        with self._room_for(caller):
            cursor = await self._engine.open_cursor(salt)
        return self._add(caller, TokenLog(), SessionPictures(), salt, cursor, Tail.EMPTY, tenant)

    async def fork(self, caller: Caller, session_id: str) -> Session:
        """Return a new session with a copy of the session's present log. Raises SessionLimit, and
        the errors of idle()."""
        origin = self.idle(caller, session_id)
        log, pictures, tail = origin.log.copy(), origin.pictures.copy(), origin.tail
        with self._room_for(caller):
            if origin.cursor is None:
                cursor = await self._engine.open_cursor(origin.salt)
            else:
                cursor = await self._engine.fork_cursor(origin.cursor)
        twin = self._add(caller, log, pictures, origin.salt, cursor, tail, origin.tenant)
        self._drop_files()
        return twin

    @property
    def picture_bytes(self) -> int:
        """Return the bytes of picture files of all sessions. A forked session counts its own."""
        return sum(session.pictures.nbytes for session in self._sessions.values())

    def add_pictures(self, session: Session, pictures: Sequence[PromptPicture]) -> None:
        """Add pictures to the end of the session's log, before their tokens. Drop old files beyond
        the budgets."""
        if not pictures:
            return
        held = session.pictures
        held.append(pictures, session.log.length)
        while held.nbytes > self._picture_bytes and held.drop_oldest():
            pass
        self._drop_files()

    def _drop_files(self) -> None:
        """Drop picture files of the least recently used sessions until all keep the budget."""
        excess = self.picture_bytes - SESSIONS_OF_PICTURES * self._picture_bytes
        if excess <= 0:
            return
        for session in sorted(self._sessions.values(), key=lambda one: one.last_used):
            while excess > 0 and (dropped := session.pictures.drop_oldest()):
                excess -= dropped

    def idle(self, caller: Caller, session_id: str) -> Session:
        """Return the session, for an immediate change of its log, as just used. Raises
        UnknownSession, and SessionBusy during a turn."""
        session = self._find(caller, session_id)
        if session.busy:
            raise SessionBusy(
                f"session_id {session_id!r} is answering: wait for Finished or cancel that call"
            )
        session.last_used = self._clock()
        return session

    def turn(self, caller: Caller, session_id: str) -> Turn:
        """Return a new turn of the session. Enter it to hold the session while its log is answered.
        Raises the errors of idle()."""
        return Turn(self.idle(caller, session_id), self)

    async def cursor(self, session: Session) -> int:
        """Return the session's cursor in the engine's tree, opened if missing. REQUIRES: its turn
        is entered."""
        if session.cursor is None:
            session.cursor = await self._engine.open_cursor(session.salt)
        return session.cursor

    def close(self, caller: Caller, session_id: str) -> None:
        """Close the session. A turn in progress continues to its end, and the session's cursor
        closes then. Raises UnknownSession."""
        self._close(self._find(caller, session_id))

    def _close(self, session: Session) -> None:
        del self._sessions[session.id]
        if not session.busy:
            self._drop_cursor(session)

    def _find(self, caller: Caller, session_id: str) -> Session:
        session = self._sessions.get(SessionId(session_id))
        if session is None or session.owner != caller.name:
            raise UnknownSession(
                f"session_id {session_id!r} is unknown (never opened, closed, or idle too long): "
                "open one"
            )
        return session

    def _add(
        self,
        caller: Caller,
        log: TokenLog,
        pictures: SessionPictures,
        salt: bytes,
        cursor: int,
        tail: Tail,
        tenant: str | None,
    ) -> Session:
        session_id = SessionId(secrets.token_hex(16))
        label = f"session {next(self._numbers)}"
        session = Session(
            *(session_id, caller.name, log, salt, cursor, tail, self._clock(), label, tenant),
            pictures=pictures,
        )
        self._sessions[session_id] = session
        return session

    def turn_ended(self, session: Session, kept: bool) -> None:
        """Record the end of a session's turn. kept: the turn's answer joined the log; else close
        the cursor."""
        session.last_used = self._clock()
        if not kept or session.id not in self._sessions:
            # The engine may have published the tokens just removed from the log.
            self._drop_cursor(session)

    def _drop_cursor(self, session: Session) -> None:
        if session.cursor is not None:
            self._engine.close_cursor(session.cursor)
            session.cursor = None

    @contextmanager
    def _room_for(self, caller: Caller) -> Iterator[None]:
        """Reserve a place for one more session of the caller, inside `with`, while the engine opens
        its cursor. Raises SessionLimit."""
        if caller.is_one_of_many and self._per_key:
            self._make_room(
                self._per_key,
                caller.name,
                f"{caller.name} has {self._per_key} sessions open, as many as one key may: close "
                "some",
            )
        self._make_room(
            self._max_sessions,
            None,
            f"{self._max_sessions} sessions are open: close some, or raise --max-sessions",
        )
        self._opening[caller.name] += 1
        try:
            yield
        finally:
            self._opening[caller.name] -= 1
            if not self._opening[caller.name]:
                del self._opening[caller.name]

    def _make_room(self, most: int, owner: str | None, complaint: str) -> None:
        """If `most` or more sessions are open, close those unused for idle_seconds and without a
        turn. Raises SessionLimit with the text `complaint` if `most` are still open. owner: count
        and close only this caller's sessions; None: all."""
        if self._count(owner) < most:
            return
        deadline = self._clock() - self._idle_seconds
        for session in [*self._sessions.values()]:
            is_meant = owner in (None, session.owner)
            if is_meant and not session.busy and session.last_used < deadline:
                self._close(session)
        if self._count(owner) >= most:
            raise SessionLimit(complaint)

    def _count(self, owner: str | None) -> int:
        """Return the number of sessions of the caller, with those being opened. owner: the caller's
        name; None: all callers."""
        if owner is None:
            return len(self._sessions) + self._opening.total()
        mine = sum(session.owner == owner for session in self._sessions.values())
        return mine + self._opening[owner]


@dataclass(frozen=True)
class SessionInput:
    """The input of one Append, as tokens. tail: kind of the log's end afterwards. closing: tokens
    to end the previous answer; the first is left out if the log already ends with it. marks: token
    counts within `tokens`. pictures: those among `tokens`."""

    tail: Tail
    tokens: Tokens
    marks: tuple[int, ...] = ()
    closing: tuple[int, ...] = ()
    pictures: tuple[PromptPicture, ...] = ()

    def behind(self, log: TokenLog) -> "SessionInput":
        """Return the input with the tokens to append to `log`. A missing closing of its last answer
        comes first."""
        closing = self.closing
        if closing and log.ends_with(closing[0]):
            closing = closing[1:]
        tokens = np.concatenate([np.array(closing, dtype=np.int32), self.tokens])
        marks = tuple(len(closing) + mark for mark in self.marks)
        return SessionInput(self.tail, tokens, marks, (), moved(self.pictures, len(closing)))


@dataclass(frozen=True)
class LogEnd:
    """The state of a session log's end, needed to append messages. salt: salt of the session."""

    tail: Tail
    salt: bytes


@dataclass(frozen=True)
class Appended:
    """The result of an append. tokens: number of added tokens. total: length of the whole log in
    tokens."""

    tokens: int
    total: int


@dataclass(frozen=True)
class TurnPrompt:
    """A turn's prompt for the engine. The fields are those of Submit. label: the session's name for
    operators."""

    tokens: Tokens
    salt: bytes
    cursor: int
    marks: tuple[int, ...]
    label: str
    pictures: tuple[PromptPicture, ...] = ()


class OpenTurn(Protocol):
    prompt: TurnPrompt

    def keep(self, answer: Sequence[int]) -> None:
        """Append the answer to the session's log as the turn ends. Without this call the turn is
        removed."""


class Sessions(Protocol):
    async def end(self, caller: Caller, session_id: str) -> LogEnd:
        """Return the state of the session log's end. Raises UnknownSession, SessionBusy."""

    async def append(
        self, caller: Caller, session_id: str, after: Tail, added: SessionInput
    ) -> Appended:
        """Append the input `added` to the session's log. after: kind of the log's end when `added`
        was read; SessionBusy if it has changed. Raises UnknownSession, SessionBusy, PromptTooLong,
        InvalidRequest."""

    def turn(
        self, caller: Caller, tenant: str | None, session_id: str
    ) -> AbstractAsyncContextManager[OpenTurn]:
        """Hold the session for one turn inside `with`. tenant: the call's tenant, equal to the
        session's. Raises UnknownSession, SessionBusy, InvalidRequest."""


class HeldSessions:
    """The Sessions interface over a session store in this process."""

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
        # Other calls may have changed the log since it was read.
        if session.tail is not after:
            raise SessionBusy(
                "session_id has changed while this was read: append one thing after the other"
            )
        before = session.log.length
        new = added.behind(session.log)
        check_length("session", before + len(new.tokens), self._codec)
        if added.tail is Tail.ANSWER:
            self._open_answer(session)
        self._store.add_pictures(session, new.pictures)
        session.log.append(new.tokens, new.marks)
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
            placed = session.pictures.placed
            prompt = TurnPrompt(tokens, session.salt, cursor, marks, session.label, placed)
            yield _HeldTurn(turn, prompt)

    def _open_answer(self, session: Session) -> None:
        """Append the template's opening of the assistant's turn, only if the log ends with
        messages. If the turn is removed, the opening is removed too. Raises InvalidRequest for an
        empty log."""
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
