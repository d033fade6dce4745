"""What is one per node, for its front workers: callers' limits, ids, sessions, stored responses,
and how every request ended.

Owns a WorkerSeat for each worker. One event loop's thread. Invariants: a request that was let in
for a worker is accounted like one of this process, however its worker ends; what a worker held of
callers' caps, ids and sessions is given back when it leaves or ends; a worker's End is answered
only when the engine's own end was seen here, so that its client finds the node as it left it.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import ExitStack, aclosing
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from tasuki.engine import messages as m
from tasuki.server.auth.request_context import RequestContext
from tasuki.server.engine_client import EngineClient
from tasuki.server.errors import ServerError
from tasuki.server.responses.stored_responses import ResponseStore
from tasuki.server.sessions.turns import Sessions
from tasuki.server.unread_answer import AnswerPart
from tasuki.utils.loops.together import together

from . import messages as w
from .refusals import refused

log = logging.getLogger(__name__)

_NEVER_SENT = m.RequestError(
    m.ErrorKind.INTERNAL, "its front left before the engine had it; ask again"
)

Send = Callable[[Sequence[Any]], None]


class Registry:
    def __init__(
        self,
        engine: EngineClient,
        header: Callable[[m.RequestId], str],
        sessions: Sessions,
        responses: ResponseStore,
    ) -> None:
        """header: as Tracing.header."""
        self.engine = engine
        self.header = header
        self.sessions = sessions
        self.responses = responses
        self.owners: dict[m.RequestId, WorkerSeat] = {}
        """Of the requests in flight that were let in for a worker."""
        self._seats: dict[int, WorkerSeat] = {}
        self._chat_tokens: Counter[str] = Counter()
        """Of workers that have ended."""

    def seat(self, number: int, send: Send) -> "WorkerSeat":
        """For a worker with a number that none had before. send: to it, without waiting."""
        seat = self._seats[number] = WorkerSeat(self, send)
        return seat

    def left(self, number: int) -> None:
        """The worker has ended, or can no longer be spoken to."""
        seat = self._seats[number]
        seat.leave()
        self._chat_tokens.update(seat.chat_tokens)
        seat.chat_tokens = {}
        self._forget_if_over(number)

    def gone_from_engine(self, number: int, left: Sequence[m.RequestId]) -> None:
        """The engine takes nothing more from that worker, and has aborted what it left."""
        seat = self._seats.get(number)
        if seat is not None:
            seat.in_engine = frozenset(left)
            self._forget_if_over(number)

    def _forget_if_over(self, number: int) -> None:
        seat = self._seats[number]
        if seat.has_left and (seat.in_engine is not None or not seat.stood):
            del self._seats[number]
            seat.end_what_was_never_sent()

    def abort_asked(self, name: m.RequestId) -> None:
        """The engine was asked to abort it, perhaps before it had the request."""
        seat = self.owners.get(name)
        if seat is not None:
            seat.send([w.AbortAsked(name)])

    def chat_tokens(self, own: Mapping[str, int]) -> dict[str, int]:
        """The sum of all workers' and of this process's own."""
        return dict(
            sum((Counter(seat.chat_tokens) for seat in self._seats.values()), self._chat_tokens)
            + Counter(own)
        ) or dict(own)


@dataclass
class _EnteredCall:
    """context: of its caller. ended: of each answer, once the engine's end was seen. unread: of how
    many answers the worker has yet to send an End. names: the engine's, of each answer; none before
    it was let in."""

    context: RequestContext
    ended: list[asyncio.Event]
    unread: int
    names: tuple[m.RequestId, ...] = ()
    task: asyncio.Task[None] = field(init=False)


class WorkerSeat:
    """What one worker has asked for. in_engine: which of its requests the engine had when it took
    no more from it; None: it still does."""

    def __init__(self, registry: Registry, send: Send) -> None:
        self._registry = registry
        self._engine = registry.engine
        self.send = send
        self.chat_tokens: dict[str, int] = {}
        self.stood = False
        self.has_left = False
        self.in_engine: frozenset[m.RequestId] | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._entered: dict[int, _EnteredCall] = {}
        self._names: set[m.RequestId] = set()
        """Of the answers that were let in and have yet to end."""
        self._turns: dict[int, asyncio.Future[w.EndTurn]] = {}
        self._reserved: dict[int, ExitStack] = {}

    def take(self, message: Any) -> None:
        match message:
            case w.Enter():
                self.chat_tokens = message.chat_tokens
                self._enter(message)
            case w.End():
                self._spawn(message.call, partial(self._end, message))
            case w.BeginTurn():
                self._turns[message.call] = asyncio.get_running_loop().create_future()
                self._spawn(message.call, partial(self._turn, message))
            case w.EndTurn(call=call, begun=begun):
                turn = self._turns.pop(begun, None)
                if turn is None:
                    self.send([w.Done(call)])
                else:
                    turn.set_result(message)
            case w.Took(entered=entered, tokens=tokens):
                self._count(entered, tokens)
            case w.Leave(entered=entered, tokens=tokens, submitted=submitted):
                self._count(entered, tokens)
                self._leave_requests(entered, submitted)
            case w.Release(reserved=reserved):
                held = self._reserved.pop(reserved, None)
                if held is not None:
                    held.close()
            case w.KeepResponse(context=context, response=response):
                self._registry.responses.put(context, response)
            case w.FindResponse(call=call, context=context, response_id=name):
                found = self._registry.responses.get(context, name)
                self.send([w.ResponseFound(call, found)])
            case _:
                self._spawn(message.call, partial(self._answer, message))

    def leave(self) -> None:
        """Give back all that it holds; turns in progress are taken back."""
        self.has_left = True
        for task in self._tasks:
            task.cancel()
        for held in self._reserved.values():
            held.close()
        self._reserved.clear()

    def end_what_was_never_sent(self) -> None:
        """REQUIRES: has_left, and in_engine is known."""
        self._never_sent(self._names - (self.in_engine or frozenset()))
        for name in self._names:
            self._registry.owners.pop(name, None)

    async def _answer(self, ask: Any) -> None:
        sessions = self._registry.sessions
        match ask:
            case w.Admit(call=call, caller=caller):
                await self._engine.admit(caller)
                self.send([w.Done(call)])
            case w.Reserve(call=call, caller=caller, given=given):
                await self._engine.admit(caller)
                held = ExitStack()
                reserved = held.enter_context(self._engine.reserved(caller, given))
                self._reserved[call] = held
                self.send([w.Reserved(call, reserved)])
            case w.ReadLogEnd(call=call, caller=caller, session_id=session):
                self.send([w.LogEndRead(call, await sessions.end(caller, session))])
            case w.AppendToLog(call=call, caller=caller, session_id=session):
                done = await sessions.append(caller, session, ask.after, ask.added)
                self.send([w.AppendedToLog(call, done)])
            case _:
                raise TypeError(f"{type(ask).__name__} is not a worker's to send")

    def _enter(self, ask: w.Enter) -> None:
        count = sum(len(submit.answer_ids) for submit in ask.submits)
        entered = _EnteredCall(ask.context, [asyncio.Event() for _ in range(count)], count)
        self._entered[ask.call] = entered
        entered.task = self._spawn(ask.call, partial(self._follow, ask, entered))

    async def _follow(self, ask: w.Enter, entered: _EnteredCall) -> None:
        """Let the requests in, and account them as those of this process until their ends."""

        def let_in(named: Sequence[m.Submit]) -> None:
            names = tuple(name for submit in named for name in submit.answer_ids)
            entered.names = names
            self._names.update(names)
            self._registry.owners.update(dict.fromkeys(names, self))
            self.send([w.Entered(ask.call, names, tuple(map(self._registry.header, names)))])

        sinks, scores = [None] * len(entered.ended), [None] * len(ask.submits)
        asking = self._engine.generate_all(ask.submits, ask.context, sinks, scores, let_in)
        try:
            async with asking as answers:
                each = zip(entered.names, answers, entered.ended, strict=True)
                await together([self._follow_answer(*answer) for answer in each])
        except ServerError:
            self._entered.pop(ask.call, None)
            raise

    async def _follow_answer(
        self, name: m.RequestId, parts: AsyncGenerator[AnswerPart, None], ended: asyncio.Event
    ) -> None:
        try:
            async with aclosing(parts):
                async for _ in parts:
                    pass
        except ServerError:
            # The engine's refusal comes to the worker from the engine.
            pass
        self._names.discard(name)
        self._registry.owners.pop(name, None)
        ended.set()

    async def _end(self, ask: w.End) -> None:
        self._count(ask.entered, ask.tokens)
        entered = self._entered.get(ask.entered)
        if entered is not None:
            entered.unread -= 1
            if entered.unread:
                await entered.ended[ask.answer].wait()
            else:
                # The call's last: what it held of its caller's caps is given back, too.
                del self._entered[ask.entered]
                await asyncio.wait({entered.task})
        self.send([w.Done(ask.call)])

    async def _turn(self, ask: w.BeginTurn) -> None:
        ending = self._turns[ask.call]
        try:
            turn = self._registry.sessions.turn(ask.caller, ask.tenant, ask.session_id)
            async with turn as opened:
                self.send([w.TurnBegun(ask.call, opened.prompt)])
                end = await ending
                if end.answer is not None:
                    opened.keep(end.answer)
        finally:
            self._turns.pop(ask.call, None)
        self.send([w.Done(end.call)])

    def _count(self, entered: int, tokens: int) -> None:
        asked = self._entered.get(entered)
        if asked is not None and tokens:
            self._engine.answered(asked.context.caller, tokens)

    def _leave_requests(self, entered: int, submitted: bool) -> None:
        asked = self._entered.pop(entered, None)
        if asked is None:
            return
        asked.task.cancel()
        left = self._names.intersection(asked.names)
        self._names -= left
        for name in left:
            self._registry.owners.pop(name, None)
        if not submitted:
            # Once what follows them has let go of them.
            asked.task.add_done_callback(lambda _: self._never_sent(left))

    def _never_sent(self, names: Iterable[m.RequestId]) -> None:
        waiting = [name for name in names if self._engine.awaits_end(name)]
        self._engine.take([m.Rejected(name, _NEVER_SENT) for name in waiting])

    def _spawn(
        self, call: int, work: Callable[[], Coroutine[Any, Any, None]]
    ) -> asyncio.Task[None]:
        async def answered() -> None:
            try:
                await work()
            except ServerError as error:
                self.send([refused(call, error)])
            except Exception:
                log.exception("a front worker's call failed")
                self.send([refused(call, ServerError("internal error: see this node's log"))])

        task = asyncio.get_running_loop().create_task(answered())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task
