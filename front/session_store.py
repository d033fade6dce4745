"""Sessions: the server's copy of a conversation as tokens.

Owns the token logs and the engine's cursors that belong to them. Does not know proto, text or
templates. One event loop's thread. Invariants: a log only grows, except that a turn which did not
finish is taken back; one turn at a time per session; every cursor opened is closed once; a cursor
vouches for tokens of its log alone, so it ends with a turn that is taken back.
"""

import itertools
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NewType

import numpy as np

from .engine_client import EngineClient
from .errors import SessionBusy, SessionLimit, UnknownSession
from .token_log import TokenLog

SessionId = NewType("SessionId", str)


class Tail(Enum):
    """What stands at the log's end, which decides how chat messages join it."""

    EMPTY = "empty"
    TOKENS = "tokens"
    MESSAGES = "messages"
    ANSWER = "answer"


@dataclass
class Session:
    """busy: a turn is being answered, and nothing else may touch the log until it ends. cursor:
    None until the next turn, after one that was taken back. label: what operators may call it, as
    its id is a secret."""

    id: SessionId
    log: TokenLog
    salt: bytes
    cursor: int | None
    tail: Tail
    last_used: float
    label: str
    busy: bool = False


class Turn:
    """One answer in the making. The session is busy inside `with`; what the log gained is taken
    back at its end unless `keep` was called."""

    def __init__(self, session: Session, finish: Callable[[Session, bool], None]) -> None:
        """finish(session, kept) is called at the end."""
        self.session = session
        self._length = session.log.length
        self._tail = session.tail
        self._finish = finish
        self._kept = False

    def __enter__(self) -> "Turn":
        self.session.busy = True
        return self

    def keep(self, answer: Sequence[int]) -> None:
        """The answer joins the log."""
        self.session.log.append(np.array(answer, dtype=np.int32))
        self.session.tail = Tail.ANSWER
        self._kept = True

    def __exit__(self, *_: object) -> None:
        self.session.busy = False
        if not self._kept:
            self.session.log.truncate(self._length)
            self.session.tail = self._tail
        self._finish(self.session, self._kept)


class SessionStore:
    def __init__(
        self,
        engine: EngineClient,
        clock: Callable[[], float],
        max_sessions: int = 1024,
        idle_seconds: float = 3600.0,
    ) -> None:
        """idle_seconds: a session unused that long may be closed to make room for a new one."""
        self._engine = engine
        self._clock = clock
        self._max_sessions = max_sessions
        self._idle_seconds = idle_seconds
        self._sessions: dict[SessionId, Session] = {}
        self._opening = 0
        self._numbers = itertools.count(1)

    def __len__(self) -> int:
        return len(self._sessions)

    async def open(self, salt: bytes) -> Session:
        self._make_room()
        self._opening += 1
        try:
            cursor = await self._engine.open_cursor(salt)
        finally:
            self._opening -= 1
        return self._add(TokenLog(), salt, cursor, Tail.EMPTY)

    async def fork(self, session_id: str) -> Session:
        """A new session with the same log as it stands now."""
        origin = self.idle(session_id)
        log, tail = origin.log.copy(), origin.tail
        self._make_room()
        self._opening += 1
        try:
            if origin.cursor is None:
                cursor = await self._engine.open_cursor(origin.salt)
            else:
                cursor = await self._engine.fork_cursor(origin.cursor)
        finally:
            self._opening -= 1
        return self._add(log, origin.salt, cursor, tail)

    def idle(self, session_id: str) -> Session:
        """The session, to change its log now. Raises UnknownSession, SessionBusy."""
        session = self._find(session_id)
        if session.busy:
            raise SessionBusy(
                f"session_id {session_id!r} is answering: wait for Finished or cancel that call"
            )
        session.last_used = self._clock()
        return session

    def turn(self, session_id: str) -> Turn:
        """Enter it to hold the session while its log is answered."""
        return Turn(self.idle(session_id), self._turn_ended)

    async def cursor(self, session: Session) -> int:
        """The session's place in the engine's tree. REQUIRES: its turn is entered."""
        if session.cursor is None:
            session.cursor = await self._engine.open_cursor(session.salt)
        return session.cursor

    def close(self, session_id: str) -> None:
        """A turn in progress goes on to its end, and the cursor closes with it."""
        session = self._find(session_id)
        del self._sessions[session.id]
        if not session.busy:
            self._drop_cursor(session)

    def _find(self, session_id: str) -> Session:
        session = self._sessions.get(SessionId(session_id))
        if session is None:
            raise UnknownSession(
                f"session_id {session_id!r} is unknown (never opened, closed, or idle too long): "
                "open one"
            )
        return session

    def _add(self, log: TokenLog, salt: bytes, cursor: int, tail: Tail) -> Session:
        session_id = SessionId(secrets.token_hex(16))
        session = Session(
            session_id, log, salt, cursor, tail, self._clock(), f"session {next(self._numbers)}"
        )
        self._sessions[session_id] = session
        return session

    def _turn_ended(self, session: Session, kept: bool) -> None:
        session.last_used = self._clock()
        if not kept or session.id not in self._sessions:
            # The engine may have published what the log has just lost.
            self._drop_cursor(session)

    def _drop_cursor(self, session: Session) -> None:
        if session.cursor is not None:
            self._engine.close_cursor(session.cursor)
            session.cursor = None

    def _make_room(self) -> None:
        if len(self._sessions) + self._opening < self._max_sessions:
            return
        deadline = self._clock() - self._idle_seconds
        for session in [*self._sessions.values()]:
            if not session.busy and session.last_used < deadline:
                self.close(session.id)
        if len(self._sessions) + self._opening >= self._max_sessions:
            raise SessionLimit(
                f"{self._max_sessions} sessions are open: close some, or raise --max-sessions"
            )
