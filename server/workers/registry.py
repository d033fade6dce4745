"""The one registry of a node with front workers: callers' limits, ids, sessions, stored responses.

Registry owns a WorkerSeat for each worker. One event loop's thread. Invariants: a request admitted
for a worker is accounted like one of this process, however its worker ends. When a worker leaves or
ends, its share of callers' limits, ids and sessions is given back. A worker's End is answered only
after the engine's own end was seen by the registry. Its client therefore finds the node's state up
to date.

WorkerSeat is the registry's side of one front worker. It takes the worker's messages and answers
each ask once. It owns the worker's asks that have begun something (AskTable), and one holding task
for each. One event loop's thread. Invariants: an ask is answered once, unless its worker left. An
ask that begins something is held until its ending message, in whichever order the two come. When
the worker leaves, everything is given back.

AskTable keeps a state for each ask of one worker that begins something. Pure. Such an ask has one
ending message, or one for each of its parts. The ending message may come before the ask, with it,
before its grant, or later. Invariants: an entry is removed once its ask and its end have come and
nothing is held for it. A refused ask was never granted and is removed at its refusal. A later end
of a removed ask changes nothing.

| event   | no entry    | ASKED     | BEGUN  | WITHDRAWN | ENDING | OVER   | ENDED_FIRST |
| ------- | ----------- | --------- | ------ | --------- | ------ | ------ | ----------- |
| begin() | ASKED       | error     | error  | error     | error  | error  | leaves      |
| grant() | error       | BEGUN     | error  | ENDING    | error  | error  | error       |
| end()   | ENDED_FIRST | WITHDRAWN | ENDING | -         | -      | leaves | -           |
| over()  | error       | leaves    | OVER   | leaves    | leaves | error  | error       |
"""

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from typing import Any, Generic, TypeVar

from tasuki.engine import messages as m
from tasuki.engine.apart.frames import TakeMessages
from tasuki.engine.messages import PictureCounts
from tasuki.engine.messages.media import KnownBlocks
from tasuki.server.engine_client import EngineClient
from tasuki.server.errors import RequestAborted, ServerError
from tasuki.server.responses.stored_responses import ResponseStore
from tasuki.server.sessions import Sessions
from tasuki.server.unread_answer import AnswerPart
from tasuki.utils.loops import together

from . import messages as w
from .messages import refused

BegunT = TypeVar("BegunT")


class AskState(Enum):
    ASKED = "asked"  # its grant or rejection is still to come
    BEGUN = "begun"  # granted: something is held for it
    WITHDRAWN = "withdrawn"  # its end came before its grant
    ENDING = "ending"  # granted and ended: its hold is being released
    OVER = "over"  # nothing is held for it, and its end is still to come
    ENDED_FIRST = "ended first"  # its end came before the ask itself


class AskOrderError(ValueError):
    """An event came in a state of its ask not allowing it, such as a second begin()."""

    def __init__(self, event: str, call: int, state: AskState | None) -> None:
        found = "not known" if state is None else f"in state {state.value!r}"
        super().__init__(f"{event} of ask {call}, which is {found}: give each ask its own number")


_AT_GRANT = {AskState.ASKED: AskState.BEGUN, AskState.WITHDRAWN: AskState.ENDING}
_AT_END = {AskState.ASKED: AskState.WITHDRAWN, AskState.BEGUN: AskState.ENDING}
_LEAVES_OVER = frozenset({AskState.ASKED, AskState.WITHDRAWN, AskState.ENDING})


@dataclass
class _Entry(Generic[BegunT]):
    """The state of one ask. begun: the object given to begin(); None in state ENDED_FIRST.
    parts_left: number of parts not ended yet; below zero if ends came before the ask. whole: the
    whole ask has ended, however many parts it has."""

    state: AskState
    begun: BegunT | None
    parts_left: int
    whole: bool = False

    @property
    def all_ended(self) -> bool:
        return self.whole or self.parts_left <= 0


class AskTable(Generic[BegunT]):
    """The states of a worker's asks by number, each with the object given to begin(). Numbers grow:
    every number up to the highest begun belongs to an ask already received."""

    def __init__(self) -> None:
        self._entries: dict[int, _Entry[BegunT]] = {}
        self._highest = 0

    def __len__(self) -> int:
        return len(self._entries)

    def state(self, call: int) -> AskState | None:
        """Return the state of an ask; None if it has no entry. call: the ask's number."""
        entry = self._entries.get(call)
        return None if entry is None else entry.state

    def find(self, call: int) -> BegunT | None:
        """Return the object given to begin() for an ask. Return None before the ask and after its
        entry has left."""
        entry = self._entries.get(call)
        return None if entry is None else entry.begun

    def begin(self, call: int, begun: BegunT, parts: int = 1) -> bool:
        """Record the arrival of an ask. Return True, or False if its end arrived first: then
        nothing may be started for it. begun: object to keep for the ask. parts: number of its parts
        to end.

        Raises AskOrderError if the ask has an entry already.
        """
        entry = self._entries.get(call)
        if entry is not None and entry.state is not AskState.ENDED_FIRST:
            raise AskOrderError("a begin", call, entry.state)
        self._highest = max(self._highest, call)
        if entry is not None:
            entry.parts_left += parts
            if entry.all_ended:
                del self._entries[call]
                return False
            parts = entry.parts_left
        self._entries[call] = _Entry(AskState.ASKED, begun, parts)
        return True

    def grant(self, call: int) -> None:
        """Record the ask as granted. Raises AskOrderError if the ask does not wait for a grant."""
        entry = self._entries.get(call)
        if entry is None or entry.state not in _AT_GRANT:
            raise AskOrderError("a grant", call, self.state(call))
        entry.state = _AT_GRANT[entry.state]

    def end(self, call: int) -> AskState | None:
        """Record the end of the whole ask, even before it. Return the ask's previous state; None:
        it had no entry."""
        entry = self._entries.get(call)
        if entry is None:
            if call > self._highest:
                self._entries[call] = _Entry(AskState.ENDED_FIRST, None, 0, whole=True)
            return None
        entry.whole = True
        return self._moved_on(call, entry)

    def end_part(self, call: int) -> AskState | None:
        """Record the end of one part of the ask. The end of the last part ends the ask. Return the
        ask's previous state; None: it had no entry. An end before its ask is kept for begin()."""
        entry = self._entries.get(call)
        if entry is None:
            if call > self._highest:
                self._entries[call] = _Entry(AskState.ENDED_FIRST, None, -1)
            return None
        entry.parts_left -= 1
        return self._moved_on(call, entry)

    def over(self, call: int) -> AskState:
        """Record that nothing is held for the ask any more. Return the ask's previous state.

        Raises AskOrderError if this was recorded before.
        """
        entry = self._entries.get(call)
        if entry is None or entry.state in (AskState.OVER, AskState.ENDED_FIRST):
            raise AskOrderError("an over", call, self.state(call))
        if entry.state in _LEAVES_OVER:
            del self._entries[call]
            return entry.state
        entry.state = AskState.OVER
        return AskState.BEGUN

    def end_all(self) -> None:
        """Record the end of every ask of the table, because their worker is gone."""
        for call, entry in [*self._entries.items()]:
            if entry.state is AskState.ENDED_FIRST:
                del self._entries[call]
            else:
                self.end(call)

    def _moved_on(self, call: int, entry: _Entry[BegunT]) -> AskState:
        """Move the ask's entry to its next state if all parts have ended. Return its previous
        state."""
        found = entry.state
        if not entry.all_ended:
            return found
        if found is AskState.OVER:
            del self._entries[call]
        else:
            entry.state = _AT_END.get(found, found)
        return found


Header = Callable[[m.RequestId], str]
"""A function with the meaning of Tracing.header: returns a request's traceparent."""


@dataclass(frozen=True)
class NodeState:
    """The parts of the node used by all worker seats. header: returns a request's traceparent, as
    Tracing.header does. owners: the WorkerSeat of each worker's request in flight, by the engine's
    id."""

    engine: EngineClient
    header: Header
    sessions: Sessions
    responses: ResponseStore
    owners: dict[m.RequestId, Any] = field(default_factory=dict)


@dataclass
class Begun:
    """An ask, and the task holding its grant until the ask ends. end: future of the ending message;
    not set for an EnteredCall, because the table records its end."""

    ask: w.Reserve | w.BeginTurn | w.Enter
    end: asyncio.Future[w.Release | w.EndTurn] = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )
    task: asyncio.Task[None] = field(init=False)


@dataclass
class EnteredCall(Begun):
    """A worker's Enter ask: its call asks to admit requests. names: the engine's id of each answer;
    empty before the grant. ended: indices of the answers ended by the engine. waiting: the worker's
    End messages not answered yet."""

    ask: w.Enter
    names: tuple[m.RequestId, ...] = ()
    ended: set[int] = field(default_factory=set)
    waiting: list[w.End] = field(default_factory=list)

    @property
    def answers(self) -> int:
        """Return the number of answers the call asks for."""
        return sum(len(submit.answer_ids) for submit in self.ask.submits)


log = logging.getLogger(__name__)


_NEVER_SENT = m.RequestError(
    m.ErrorKind.INTERNAL, "its front left before the engine had it; ask again"
)
_ENDED_BEFORE_GRANT = "the call ended before the node let it in; ask again"


class WorkerSeat:
    """The registry's side of one front worker: its asks and their grants. in_engine: ids of the
    worker's requests known to the engine when it stopped taking messages from the worker. None: the
    engine still takes them."""

    def __init__(self, node: NodeState, send: TakeMessages) -> None:
        """Set up the seat of a worker. send: sends messages to the worker, without waiting."""
        self._node = node
        self.send = send
        self.chat_tokens: dict[str, int] = {}
        self.failures: dict[str, int] = {}
        """Number of failed calls by kind, at the last Look at the worker."""
        self.pictures = PictureCounts()
        """Counts of pictures at the same time."""
        self.stood = False
        self.has_left = False
        self.in_engine: frozenset[m.RequestId] | None = None
        self._asks: AskTable[Begun] = AskTable()
        self._tasks: set[asyncio.Task[None]] = set()
        self._names: set[m.RequestId] = set()
        """The engine's ids of the answers admitted and not ended yet."""

    def take(self, message: Any) -> None:
        """Handle a message sent by the front worker."""
        match message:
            case w.Enter():
                self.chat_tokens = message.chat_tokens
                call = EnteredCall(message)
                self._begin(call, self._follow(call), parts=call.answers)
            case w.BeginTurn():
                begun = Begun(message)
                self._begin(begun, self._hold_turn(begun))
            case w.Reserve():
                begun = Begun(message)
                self._begin(begun, self._hold_id(begun))
            case w.End():
                self._end_answer(message)
            case w.Leave():
                self._leave_call(message)
            case w.EndTurn():
                self._end_turn(message)
            case w.Release(reserved=reserved):
                self._end(reserved, message)
            case w.Took(entered=entered, tokens=tokens):
                self._count(entered, tokens)
            case w.KeepResponse(context=context, response=response):
                self._node.responses.put(context, response)
            case w.FindResponse(call=number, context=context, response_id=name):
                self.send([w.ResponseFound(number, self._node.responses.get(context, name))])
            case _:
                task = self._spawn(self._answer(message))
                task.add_done_callback(partial(self._answered, message.call))

    def leave(self) -> None:
        """Give back everything held by the worker. Turns in progress are removed from their
        sessions."""
        self.has_left = True
        self._asks.end_all()
        for task in self._tasks:
            task.cancel()

    def end_what_was_never_sent(self) -> None:
        """End the worker's requests if the engine never received them. REQUIRES: has_left, and
        in_engine is known."""
        self._never_sent(self._names - (self.in_engine or frozenset()))
        self._forget(self._names)

    def _begin(self, begun: Begun, work: Coroutine[Any, Any, None], parts: int = 1) -> None:
        """Start `work` as a task holding the ask's grant, unless the ask's ending message came
        first. parts: number of the ask's parts to end."""
        if not self._asks.begin(begun.ask.call, begun, parts):
            work.close()
            self._refuse(begun.ask.call, RequestAborted(_ENDED_BEFORE_GRANT))
            return
        begun.task = self._spawn(work)
        begun.task.add_done_callback(lambda _: self._over(begun))

    def _grant(self, begun: Begun, reply: w.Reply) -> None:
        self._asks.grant(begun.ask.call)
        self.send([reply])

    def _over(self, begun: Begun) -> None:
        """Answer the ask's messages not answered yet. Called after its task has given everything
        back."""
        call, found, error = begun.ask.call, self._asks.over(begun.ask.call), _error(begun.task)
        if self.has_left:
            return
        was_granted = found in (AskState.BEGUN, AskState.ENDING)
        if not was_granted:
            self._refuse(call, error or RequestAborted(_ENDED_BEFORE_GRANT))
        if isinstance(begun, EnteredCall):
            self._done(begun.waiting)
            begun.waiting = []
            if found is AskState.ENDING:
                self._forget(begun.names)
            return
        end = begun.end.result() if begun.end.done() else None
        if isinstance(end, w.EndTurn):
            if was_granted and error is not None:
                self._refuse(end.call, error)
            else:
                self.send([w.Done(end.call)])

    async def _hold_id(self, begun: Begun) -> None:
        ask = begun.ask
        assert isinstance(ask, w.Reserve)
        await self._node.engine.admit(ask.caller)
        with self._node.engine.reserved(ask.caller, ask.given) as reserved:
            self._grant(begun, w.Reserved(ask.call, reserved))
            await begun.end

    async def _hold_turn(self, begun: Begun) -> None:
        ask = begun.ask
        assert isinstance(ask, w.BeginTurn)
        turn = self._node.sessions.turn(ask.caller, ask.tenant, ask.session_id)
        async with turn as opened:
            self._grant(begun, w.TurnBegun(ask.call, opened.prompt))
            end = await begun.end
            if isinstance(end, w.EndTurn) and end.answer is not None:
                opened.keep(end.answer)

    async def _follow(self, call: EnteredCall) -> None:
        """Admit the call's requests, and account them as those of this process until their ends."""
        ask = call.ask

        def let_in(named: Sequence[m.Submit]) -> None:
            names = tuple(name for submit in named for name in submit.answer_ids)
            call.names = names
            self._names.update(names)
            self._node.owners.update(dict.fromkeys(names, self))
            self._grant(call, w.Entered(ask.call, names, tuple(map(self._node.header, names))))

        sinks, scores = [None] * call.answers, [None] * len(ask.submits)
        asking = self._node.engine.generate_all(ask.submits, ask.context, sinks, scores, let_in)
        async with asking as answers:
            await together([self._follow_answer(call, *each) for each in enumerate(answers)])

    async def _follow_answer(
        self, call: EnteredCall, place: int, parts: AsyncGenerator[AnswerPart, None]
    ) -> None:
        try:
            async with aclosing(parts):
                async for _ in parts:
                    pass
        except ServerError:
            # The worker gets the engine's rejection from the engine.
            pass
        self._forget([call.names[place]])
        call.ended.add(place)
        if self._asks.state(call.ask.call) is AskState.BEGUN:
            # If this End is the call's last, it waits for _over: the caller's caps are then given
            # back.
            self._done([end for end in call.waiting if end.answer == place])
            call.waiting = [end for end in call.waiting if end.answer != place]

    def _end_answer(self, end: w.End) -> None:
        self._count(end.entered, end.tokens)
        call = self._asks.find(end.entered)
        found = self._asks.end_part(end.entered)
        state = self._asks.state(end.entered)
        if not isinstance(call, EnteredCall) or state in (None, AskState.OVER):
            # The engine's end of every answer was seen, or nothing was begun.
            self._done([end])
            if isinstance(call, EnteredCall):
                self._forget(call.names)
            return
        if state in (AskState.ASKED, AskState.BEGUN) and end.answer in call.ended:
            self._done([end])
            return
        call.waiting.append(end)
        if found is AskState.ASKED and state is AskState.WITHDRAWN:
            call.task.cancel()

    def _leave_call(self, note: w.Leave) -> None:
        self._count(note.entered, note.tokens)
        call = self._asks.find(note.entered)
        self._asks.end(note.entered)
        if not isinstance(call, EnteredCall):
            return
        call.task.cancel()
        left = self._names.intersection(call.names)
        self._forget(left)
        if not note.submitted:
            # Once the task has released them.
            call.task.add_done_callback(lambda _: self._never_sent(left))

    def _end_turn(self, end: w.EndTurn) -> None:
        begun = self._asks.find(end.begun)
        found = self._end(end.begun, end)
        if found not in (AskState.ASKED, AskState.BEGUN):
            self.send([w.Done(end.call)])
        elif found is AskState.ASKED:
            assert begun is not None
            # The session is free at once, whatever the turn still waits for.
            begun.task.cancel()

    def _end(self, call: int, end: w.Release | w.EndTurn) -> AskState | None:
        """Pass an ask's ending message to the task holding its grant. Return the ask's previous
        state."""
        begun, found = self._asks.find(call), self._asks.end(call)
        if begun is not None and found in (AskState.ASKED, AskState.BEGUN):
            begun.end.set_result(end)
        return found

    async def _answer(self, ask: Any) -> None:
        sessions = self._node.sessions
        match ask:
            case w.Admit(call=call, caller=caller):
                await self._node.engine.admit(caller)
                self.send([w.Done(call)])
            case w.ReadLogEnd(call=call, caller=caller, session_id=session):
                self.send([w.LogEndRead(call, await sessions.end(caller, session))])
            case w.AppendToLog(call=call, caller=caller, session_id=session):
                done = await sessions.append(caller, session, ask.after, ask.added)
                self.send([w.AppendedToLog(call, done)])
            case _:
                raise TypeError(f"{type(ask).__name__} is no message of a worker")

    def _answered(self, call: int, task: asyncio.Task[None]) -> None:
        error = _error(task)
        if error is not None and not self.has_left:
            self._refuse(call, error)

    def _count(self, entered: int, tokens: int) -> None:
        asked = self._asks.find(entered)
        if isinstance(asked, EnteredCall) and tokens:
            self._node.engine.answered(asked.ask.context.caller, tokens)

    def _forget(self, names: Iterable[m.RequestId]) -> None:
        for name in [*names]:
            self._names.discard(name)
            if self._node.owners.get(name) is self:
                del self._node.owners[name]

    def _never_sent(self, names: Iterable[m.RequestId]) -> None:
        engine = self._node.engine
        waiting = [name for name in names if engine.awaits_end(name)]
        engine.take([m.Rejected(name, _NEVER_SENT) for name in waiting])

    def _done(self, ends: Sequence[w.End]) -> None:
        if ends:
            self.send([w.Done(end.call) for end in ends])

    def _refuse(self, call: int, error: ServerError) -> None:
        self.send([refused(call, error)])

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


def _error(task: asyncio.Task[None]) -> ServerError | None:
    """Return a holding task's error, as its worker receives it; None: it ended without one, or was
    cancelled."""
    if task.cancelled():
        return None
    error = task.exception()
    if error is None or isinstance(error, ServerError):
        return error
    log.error("a front worker's call failed", exc_info=error)
    return ServerError("internal error: see this node's log")


class Registry:
    def __init__(
        self,
        engine: EngineClient,
        header: Header,
        sessions: Sessions,
        responses: ResponseStore,
    ) -> None:
        """Set up the registry. header: returns a request's traceparent, as Tracing.header does."""
        self._node = NodeState(engine, header, sessions, responses)
        self.media = KnownBlocks()
        """Blocks of the pictures of stored responses."""
        self._seats: dict[int, WorkerSeat] = {}
        self._chat_tokens: Counter[str] = Counter()
        self._failures: Counter[str] = Counter()
        """Number of failed calls by kind. This count and _chat_tokens belong to ended workers."""
        self._pictures = PictureCounts()
        """Counts of pictures of ended workers."""

    def seat(self, number: int, send: TakeMessages) -> WorkerSeat:
        """Add a seat for a worker, and return it. number: number of the worker, used by no worker
        before. send: sends to the worker, without waiting."""
        seat = self._seats[number] = WorkerSeat(self._node, send)
        return seat

    def left(self, number: int) -> None:
        """Handle the end of a worker, or the loss of its socket. number: number of the worker."""
        seat = self._seats[number]
        seat.leave()
        self._chat_tokens.update(seat.chat_tokens)
        self._failures.update(seat.failures)
        self._pictures += seat.pictures
        seat.chat_tokens, seat.failures, seat.pictures = {}, {}, PictureCounts()
        self._forget_if_over(number)

    def gone_from_engine(self, number: int, left: Sequence[m.RequestId]) -> None:
        """Record the end of a worker's link to the engine: the engine takes nothing more from it
        and has aborted its requests. number: number of the worker; an unknown one is ignored. left:
        ids of the aborted requests."""
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
        """Pass an abort to the request's worker, because the engine may have received the abort
        before the request. Ignored if no worker has the request. name: the engine's id of the
        request."""
        seat = self._node.owners.get(name)
        if seat is not None:
            seat.send([w.AbortAsked(name)])

    def chat_tokens(self, own: Mapping[str, int]) -> dict[str, int]:
        """Return the rendered tokens by source: the sum of all workers' and this process's own."""
        return dict(
            sum((Counter(seat.chat_tokens) for seat in self._seats.values()), self._chat_tokens)
            + Counter(own)
        ) or dict(own)

    def failures(self, own: Mapping[str, int]) -> dict[str, int]:
        """Return the number of failed calls by kind: the sum of all workers' and this process's
        own."""
        found = Counter(own)
        for counts in (self._failures, *(seat.failures for seat in self._seats.values())):
            found.update(counts)
        return dict(found)

    def picture_counts(self, own: PictureCounts) -> PictureCounts:
        """Return the counts of pictures: the sum of all workers' and this process's own."""
        return sum((seat.pictures for seat in self._seats.values()), self._pictures + own)
