"""Plays schedules of a front worker's requests to the node's registry; the test opens its gates and
ends its engine requests."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import numpy as np

from tasuki.engine import messages as m
from tasuki.model.ops.sampling.params import SamplingParams
from tasuki.server.auth.callers import Caller
from tasuki.server.auth.limits import CallerLimits, ConcurrencyCaps
from tasuki.server.auth.tenants import RequestContext
from tasuki.server.engine_client import EngineClient
from tasuki.server.errors import RequestLimit, SessionBusy
from tasuki.server.responses.stored_responses import ResponseStore
from tasuki.server.sessions import HeldSessions, OpenTurn, Session, SessionStore, Tail
from tasuki.server.workers import messages as w
from tasuki.server.workers.registry import Registry
from tests.harness.grpc_fixtures import TOKENS_ONLY, usage
from tests.harness.waiting import ManualClock

ANN = Caller("ann")
OF_ANN = RequestContext(ANN)
RESTED = 6
"""Number of event loop turns until no work is left."""
BEGUN, ENDED, SECOND_ENDED = 1, 2, 3
"""Numbers of three worker messages: begin a request, end it, and end its second answer."""


class Gate:
    """A result tasks await until the test gives it. Waiting tasks continue one turn of the loop
    later."""

    def __init__(self) -> None:
        self._is_open = False
        self._error: Exception | None = None
        self._waiting: list[asyncio.Future[None]] = []

    async def passed(self) -> None:
        if not self._is_open:
            waiter = asyncio.get_running_loop().create_future()
            self._waiting.append(waiter)
            await waiter
        if self._error is not None:
            raise self._error

    def open(self, error: Exception | None = None) -> None:
        """Open the gate. error: raised in waiting tasks; None: they continue. A second call has no
        effect."""
        if not self._is_open:
            self._is_open, self._error = True, error
            for waiter in self._waiting:
                if not waiter.done():
                    waiter.set_result(None)


class GatedClient(EngineClient):
    """An EngineClient waiting for a gate before it admits or generates."""

    gate: Gate
    let_in = 0

    async def admit(self, caller: Caller) -> None:
        await self.gate.passed()
        await super().admit(caller)
        self.let_in += 1

    @asynccontextmanager
    async def generate_all(self, *asked: Any) -> AsyncIterator[Any]:
        await self.gate.passed()
        async with super().generate_all(*asked) as answers:
            yield answers


class GatedSessions(HeldSessions):
    gate: Gate

    @asynccontextmanager
    async def turn(self, *asked: Any) -> AsyncIterator[OpenTurn]:
        async with super().turn(*asked) as opened:
            await self.gate.passed()
            yield opened


class Played:
    """The node and worker of one schedule. Its methods are the schedule's steps."""

    def __init__(self, answers: int = 1) -> None:
        loop = asyncio.get_running_loop()
        self.answers = answers
        self.posted: list[Any] = []
        self.replies: Counter[int] = Counter()
        self.refused: set[int] = set()
        self.asked: set[int] = set()
        self.seen_ends: set[int] = set()
        self.wrong: list[str] = []
        self.gone = self.left_call = False
        self.client = GatedClient(
            self._post,
            loop,
            limits=replace(
                CallerLimits.none(),
                requests=ConcurrencyCaps(RequestLimit, "requests in flight", 8),
            ),
        )
        self.client.gate = self.gate = Gate()
        self.store = SessionStore(self.client, ManualClock())
        self.sessions = GatedSessions(self.store, TOKENS_ONLY)
        self.sessions.gate = self.gate
        self.session: Session
        self.registry = Registry(
            self.client, lambda name: "", self.sessions, ResponseStore(ManualClock(), 0, 0, 60.0)
        )
        self.seat = self.registry.seat(1, self._sent)
        self.seat.stood = True

    def _post(self, message: Any) -> None:
        self.posted.append(message)
        if isinstance(message, m.OpenCursor):
            opened = m.CursorOpened(message.query_id, 7)
            asyncio.get_running_loop().call_soon(self.client.take, [opened])

    def _sent(self, messages: Sequence[Any]) -> None:
        for message in messages:
            if self.gone or not isinstance(message, w.Reply):
                continue
            self.replies[message.call] += 1
            if isinstance(message, w.Refused):
                self.refused.add(message.call)
            elif isinstance(message, w.Done):
                self._check_done(message.call)

    def _check_done(self, call: int) -> None:
        """Check the answers to a worker's End: each comes only after the engine's end of the
        answer. The last one comes only after the caller's caps are free."""
        if self.left_call or BEGUN in self.refused or not self.replies[BEGUN]:
            return
        if self.ends_answers and call - ENDED not in self.seen_ends:
            self.wrong.append(f"End {call} is answered before the engine's own end")
        done = self.replies[ENDED] + self.replies[SECOND_ENDED]
        if self.ends_answers and done == self.answers and self.client._requests._held:
            self.wrong.append("the last End is answered, and its caller's caps are held")

    ends_answers = False
    usage = usage(3, 2)

    def tell(self, message: Any) -> None:
        if not self.gone:
            if isinstance(message, w.Ask):
                self.asked.add(message.call)
            self.seat.take(message)

    @staticmethod
    async def of_one() -> "Played":
        return Played()

    @staticmethod
    async def of_two() -> "Played":
        return Played(answers=2)

    @staticmethod
    async def of_session() -> "Played":
        """Return a Played with a session of five tokens. The session's cursor must be opened
        again."""
        self = Played()
        self.session = await self.store.open(ANN, b"")
        self.session.log.append(np.arange(5, dtype=np.int32))
        self.session.tail = Tail.TOKENS
        self.store._drop_cursor(self.session)
        return self

    def reserve(self) -> None:
        self.tell(w.Reserve(BEGUN, ANN, m.RequestId("r")))

    def release(self) -> None:
        self.tell(w.Release(BEGUN))

    def begin_turn(self) -> None:
        self.tell(w.BeginTurn(BEGUN, ANN, None, self.session.id))

    def end_turn(self) -> None:
        self.tell(w.EndTurn(ENDED, BEGUN, (8, 9)))

    def enter(self) -> None:
        forks = tuple(m.Fork(m.RequestId(f"r.{n}"), n) for n in range(1, self.answers))
        prompt = np.arange(3, dtype=np.int32)
        submit = m.Submit(m.RequestId("r.0"), prompt, SamplingParams(max_new_tokens=4), forks=forks)
        self.ends_answers = True
        self.tell(w.Enter(BEGUN, (submit,), OF_ANN, {}))

    def end_first(self) -> None:
        self.tell(w.End(ENDED, BEGUN, 0, 1))

    def end_second(self) -> None:
        self.tell(w.End(SECOND_ENDED, BEGUN, 1, 1))

    def leave_unsent(self) -> None:
        self.left_call = True
        self.tell(w.Leave(BEGUN, 1, submitted=False))

    def leave_sent(self) -> None:
        self.left_call = True
        self.tell(w.Leave(BEGUN, 1, submitted=True))

    def grant(self) -> None:
        self.gate.open()

    def refuse(self) -> None:
        self.gate.open(SessionBusy("refused by the test"))

    def engine_ends_first(self) -> None:
        self.engine_ends(0)

    def engine_ends_second(self) -> None:
        self.engine_ends(1)

    def engine_ends(self, place: int) -> None:
        """End a request in the engine. No effect if the engine does not have it."""
        name = m.RequestId(f"r.{place}")
        if self.client.awaits_end(name):
            self.client.take([m.Finished(name, m.FinishReason.STOP, self.usage)])
            # Its reader comes to it a turn of the loop later.
            self.seen_ends.add(place)

    def worker_leaves(self) -> None:
        self.gone = True
        self.registry.left(1)

    async def settle(self) -> None:
        """Let all pending events of the node happen: open the gate, and end every engine
        request."""
        await turns(RESTED)
        self.gate.open()
        await turns(RESTED)
        for name in [*self.client._unread]:
            self.seen_ends.add(int(name[-1]))
            self.client.take([m.Finished(name, m.FinishReason.ABORT, self.usage)])
        await turns(RESTED)
        if self.gone:
            self.registry.gone_from_engine(1, [])
            await turns(RESTED)

    def check(self) -> None:
        seat, client = self.seat, self.client
        assert not self.wrong
        assert len(seat._asks) == 0, "the table has an entry"
        assert not seat._tasks and not seat._names
        assert not self.registry._node.owners
        assert not client._requests._held and not client._unread and not client._queries
        assert not client._names._reserved
        assert not any(client._names.is_in_flight(ANN, m.RequestId(f"r.{n}")) for n in range(2))
        if not self.gone:
            assert all(self.replies[call] == 1 for call in self.asked), dict(self.replies)
        assert all(count == 1 for count in self.replies.values())
        if hasattr(self, "session"):
            assert not self.session.busy
            opened = sum(isinstance(each, m.OpenCursor) for each in self.posted)
            closed = sum(isinstance(each, m.CloseCursor) for each in self.posted)
            assert opened - closed == (self.session.cursor is not None)
            kept = self.session.log.length == 7
            assert kept or self.session.log.length == 5


async def turns(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)
