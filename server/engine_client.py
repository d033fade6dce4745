"""The asyncio side of the message exchange with an engine.

Owns the table of requests in flight, of queries unanswered, the log of requests that ended, and
what callers hold at once. Callers name requests, each in a namespace of its own (RequestNames).
Does not know gRPC, sessions or text. All methods belong to the event loop's thread, except
`deliver`, which is called from the engine's. Invariants: every Submit gets exactly one Finished or
Rejected from the engine, until then its id is taken; every iterator that ends early posts Abort;
what waits for a request's reader is bounded, and the reader is cut off when it is too much.
"""

import asyncio
import itertools
import logging
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Sequence
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    asynccontextmanager,
    contextmanager,
)
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeVar, get_args

from tasuki.engine import messages as m
from tasuki.pycache.packed import PackedEvents, PackedTree
from tasuki.server.auth.callers import ANYBODY, Caller
from tasuki.server.auth.limits import CallerLimits
from tasuki.server.auth.tenants import ANONYMOUS, RequestContext, visible_end, visible_evictions

from .drain import CallsInProgress, Rotation
from .errors import (
    DuplicateRequest,
    RequestAborted,
    RequestRejected,
    UnknownRequest,
)
from .request_records import RequestLog, RequestNames
from .unread_answer import AnswerPart, SinkTurn, TokenSink, UnreadAnswer

log = logging.getLogger(__name__)

ScoreSink = Callable[[m.PromptScored], None]
PostSubmits = Callable[[Sequence[m.Submit]], None]
"""Posts admitted prompts, which have the engine's names, in place of this client."""


class Answers(Protocol):
    """As EngineClient: tokens in order, then Finished; closing the iterator aborts."""

    def generate(
        self, submit: m.Submit, request_context: RequestContext
    ) -> AsyncGenerator[AnswerPart, None]: ...
    def abort(self, request_id: m.RequestId, caller: Caller) -> None: ...


class Answering(Protocol):
    """What answers clients' calls: as EngineClient, of whose methods it has these."""

    calls: CallsInProgress

    @property
    def lost(self) -> str | None: ...
    async def admit(self, caller: Caller) -> None: ...
    def admitted(
        self, caller: Caller, given: m.RequestId
    ) -> AbstractAsyncContextManager[m.RequestId]: ...
    def generate(
        self,
        submit: m.Submit,
        request_context: RequestContext = ...,
        sink: TokenSink | None = None,
        scores: ScoreSink | None = None,
    ) -> AsyncGenerator[AnswerPart, None]: ...
    def generate_all(
        self,
        submits: Sequence[m.Submit],
        request_context: RequestContext,
        sinks: Sequence[TokenSink | None],
        scores: Sequence[ScoreSink | None],
    ) -> AbstractAsyncContextManager[list[AsyncGenerator[AnswerPart, None]]]: ...
    def abort(self, request_id: m.RequestId, caller: Caller) -> None: ...


Reply = (
    m.CursorOpened
    | m.StatsReply
    | m.LoadReply
    | m.FlushReply
    | m.WatchOpened
    | m.EventsReply
    | m.TreeReply
    | m.Drained
    | m.LeftToHeirs
)
ReplyT = TypeVar("ReplyT", bound=Reply)

Observed = (
    m.Submit
    | m.Finished
    | m.Rejected
    | m.Evicted
    | m.RoomEnded
    | m.HandoverCancelled
    | m.StateLeft
    | m.StateFetched
)
_OWN = frozenset(get_args(Observed | Reply)) | {m.TokenOut, m.TokensOut, m.PromptScored}
_OWN_ALONE = _OWN - {m.HandoverCancelled}
"""A cancelled hand-over is for the record here, and for the control plane."""


def parted(
    messages: Sequence[m.Outbox],
) -> tuple[list[m.TokenOut | m.PromptScored | Observed | Reply], list[m.Outbox]]:
    """What of a delivery is a front's, and what is for the hand-over's control; some is both."""
    mine: list[Any] = []
    others: list[m.Outbox] = []
    for message in messages:
        if type(message) in _OWN:
            mine.append(message)
        if type(message) not in _OWN_ALONE:
            others.append(message)
    return mine, others


def renamed(
    submits: Sequence[m.Submit], names: Sequence[m.RequestId], context: RequestContext
) -> list[m.Submit]:
    """As the engine is sent them. names: the engine's, of every answer of each in order."""
    rest = iter(names)
    return [
        replace(
            submit,
            request_id=next(rest),
            forks=tuple(replace(fork, request_id=next(rest)) for fork in submit.forks),
            caller=context.line,
        )
        for submit in submits
    ]


@dataclass(frozen=True)
class Story:
    """end: how a request ended, seconds_ago; took: what the cache gave up for it, oldest first."""

    end: m.Finished | m.Rejected
    seconds_ago: float
    took: tuple[m.Eviction, ...]


class RequestObserver:
    """Sees what an EngineClient lets in and gives out, on its event loop; this one keeps none of
    it."""

    def begin(self, request: m.RequestId, request_context: RequestContext) -> None:
        """A request was let in, and comes from there."""

    def observe(self, message: Observed) -> None:
        """What a request asks, its end, evictions, or the end of a room."""

    def count_tokens(self, count: int) -> None:
        """A delivery brought so many tokens."""


class EngineClient:
    def __init__(
        self,
        post: m.Post,
        loop: asyncio.AbstractEventLoop,
        handover: m.Emit | None = None,
        observer: RequestObserver | None = None,
        limits: CallerLimits | None = None,
        queue_limit: int = 4096,
        drain_grace: float = 0.0,
    ) -> None:
        """post: hands a message to the engine, from any thread.

        handover: takes hand-over messages on the engine's thread; None where the role has none.
        limits: what callers may ask for and hold; None: as much as they like. queue_limit: tokens
        that may wait for one reader. drain_grace: seconds between the call for a drain and the
        first refusal.
        """
        self._post = post
        self._loop = loop
        self._handover = handover
        self._queue_limit = queue_limit
        self._observer = observer or RequestObserver()
        limits = limits or CallerLimits.none()
        self._limits = limits.rates
        self._requests = limits.requests
        self.watchers = limits.watchers
        self.ended = RequestLog(time.monotonic)
        self.calls = CallsInProgress()
        self.rotation = Rotation(drain_grace)
        self._names = RequestNames()
        self._unread: dict[m.RequestId, UnreadAnswer] = {}
        self._scores: dict[m.RequestId, ScoreSink] = {}
        self._turn = SinkTurn(loop)
        self._queries: dict[int, asyncio.Future[Any]] = {}
        self._query_ids = itertools.count(1)
        self._lost: m.RequestError | None = None
        self._retires = False
        self.http_address = ""
        """HOST:PORT of the node's HTTP server, for those who found its gRPC; empty: none, as
        yet."""

    def deliver(self, messages: Sequence[m.Outbox]) -> None:
        """Called on the engine's thread with what a step made: it wakes the event loop once."""
        mine, others = parted(messages)
        if mine:
            self._loop.call_soon_threadsafe(self.take, mine)
        for message in others:
            if self._handover is None:
                raise TypeError(
                    f"{type(message).__name__} came from an engine that hands nothing over"
                )
            self._handover(message)

    def engine_lost(self, reason: str) -> None:
        """The engine has died: ends everything in flight and refuses what comes."""
        self._lost = m.RequestError(m.ErrorKind.INTERNAL, reason)
        self.rotation.hurry()
        for name, unread in self._unread.items():
            self._names.end(name)
            unread.end(RequestRejected(self._lost))
        for query in self._queries.values():
            if not query.done():
                query.set_exception(RequestRejected(self._lost))
        self._unread.clear()
        self._queries.clear()

    @property
    def lost(self) -> str | None:
        """Why the engine has died; None while it lives."""
        return None if self._lost is None else self._lost.message

    async def admit(self, caller: Caller) -> None:
        """Count one request against what its caller may ask for: before anything of it is read.
        Raises RequestLimit, at no cost, and RateLimited."""
        self._requests.check(caller)
        self._limits.admit_request(caller)

    @asynccontextmanager
    async def admitted(self, caller: Caller, given: m.RequestId) -> AsyncIterator[m.RequestId]:
        """admit(), and inside, an id that no other call of the caller has: `given` where it is
        free."""
        await self.admit(caller)
        with self.reserved(caller, given) as reserved:
            yield reserved

    def reserved(self, caller: Caller, given: m.RequestId) -> AbstractContextManager[m.RequestId]:
        """As RequestNames.reserved."""
        return self._names.reserved(caller, given)

    def awaits_end(self, name: m.RequestId) -> bool:
        """Whether the engine has yet to end the request of that name."""
        return name in self._unread

    def answered(self, caller: Caller, tokens: int) -> None:
        """Count so many tokens of an answer that is written elsewhere."""
        self._limits.answered(caller, tokens)

    async def generate(
        self,
        submit: m.Submit,
        request_context: RequestContext = ANONYMOUS,
        sink: TokenSink | None = None,
        scores: ScoreSink | None = None,
    ) -> AsyncGenerator[AnswerPart, None]:
        """Tokens in order, those that wait together, but for what the sink has taken; then one
        Finished, with the usage that its caller may see. scores: is given what the prompt's
        tokens scored, where that is asked for, before any of the answer's. Raises
        RequestRejected, DuplicateRequest, SlowReader, RequestLimit, RateLimited, and what the sink
        raises.

        Close it (contextlib.aclosing) to abort the request.
        """
        with self._asked([submit], request_context, [sink], [scores]) as (unread,):
            while not isinstance(part := await unread.read(), m.Finished):
                self._limits.answered(request_context.caller, len(part))
                yield part
            yield visible_end(part, request_context)

    @asynccontextmanager
    async def generate_all(
        self,
        submits: Sequence[m.Submit],
        request_context: RequestContext,
        sinks: Sequence[TokenSink | None],
        scores: Sequence[ScoreSink | None],
        post: PostSubmits | None = None,
    ) -> AsyncIterator[list[AsyncGenerator[AnswerPart, None]]]:
        """The answers of several prompts of one call and of their forks, which follow their
        prompt's own; each as generate() gives it. sinks: of each answer; scores: of each prompt.
        Each counts against what its caller may ask for. post: takes what was let in, under the
        engine's names, where it is another's to post; tokens then come elsewhere. Raises as
        generate() does on entering, and then nothing was asked; on leaving what still lives is
        aborted."""
        with self._asked(submits, request_context, sinks, scores, post) as unread:
            yield [self._read(one, request_context) for one in unread]

    async def _read(
        self, unread: UnreadAnswer, request_context: RequestContext
    ) -> AsyncGenerator[AnswerPart, None]:
        while not isinstance(part := await unread.read(), m.Finished):
            self._limits.answered(request_context.caller, len(part))
            yield part
        yield visible_end(part, request_context)

    @contextmanager
    def _asked(
        self,
        submits: Sequence[m.Submit],
        request_context: RequestContext,
        sinks: Sequence[TokenSink | None],
        scores: Sequence[ScoreSink | None],
        post: PostSubmits | None = None,
    ) -> Iterator[list[UnreadAnswer]]:
        """All of them, or none where it raises; what still lives at the end is aborted."""
        self._check_alive()
        caller = request_context.caller
        given = [name for submit in submits for name in submit.answer_ids]
        for name in given:
            if self._names.is_in_flight(caller, name):
                raise DuplicateRequest(
                    f"request_id {name!r} is in flight: use another, or leave it empty"
                )
        with self._requests.held(caller, len(given)):
            if len(submits) > 1:
                # The call itself was admitted as one.
                self._limits.admit_request(caller, len(submits) - 1)
            self._limits.admit_prompt(caller, sum(len(submit.prompt) for submit in submits))
            asked: dict[m.RequestId, UnreadAnswer] = {}
            try:
                names = [self._names.take(caller, name) for name in given]
                for name, sink in zip(names, sinks, strict=True):
                    self._observer.begin(name, request_context)
                    charging = self._charging(caller, sink)
                    asked[name] = UnreadAnswer(self._queue_limit, charging, self._turn)
                    self._unread[name] = asked[name]
                named = renamed(submits, names, request_context)
                for submit, scored in zip(named, scores, strict=True):
                    if scored is not None:
                        self._scores[submit.request_id] = scored
                    self._observer.observe(submit)
                    for fork in submit.forks:
                        self._observer.observe(submit.of_fork(fork))
                (post or self._post_each)(named)
                yield list(asked.values())
            finally:
                for name, unread in asked.items():
                    self._scores.pop(name, None)
                    unread.close()
                    if self._unread.get(name) is unread:
                        self._post(m.Abort(name))

    def _post_each(self, submits: Sequence[m.Submit]) -> None:
        for submit in submits:
            self._post(submit)

    def _charging(self, caller: Caller, sink: TokenSink | None) -> TokenSink | None:
        """The sink, and what it takes counts against the caller's limits where any count it."""
        if sink is None or not self._limits.count_tokens:
            return sink

        def take(tokens: Sequence[m.TokenOut]) -> bool:
            taken = sink(tokens)
            if taken:
                self._limits.answered(caller, len(tokens))
            return taken

        return take

    def abort(self, request_id: m.RequestId, caller: Caller) -> None:
        """Idempotent; the request's iterator ends with Finished(ABORT) where it still lived.
        Nothing happens where it is another's and the caller no operator."""
        name = self._names.find(caller, request_id)
        if name is not None:
            self._post(m.Abort(name))

    def story(self, request_id: str, request_context: RequestContext) -> Story:
        """How a request ended, as its caller may see it. Raises UnknownRequest, also where it is
        another's and the caller no operator."""
        name = self._names.find(request_context.caller, request_id)
        found = None if name is None else self.ended.find(name)
        if name is None or found is None:
            raise UnknownRequest(
                f"request_id {request_id!r} is not among the requests that ended here lately: ask "
                "the node that answered it, with the id of its headers and the key that asked"
            )
        ended, ago = found
        end = (
            ended.end
            if isinstance(ended.end, m.Rejected)
            else visible_end(ended.end, request_context)
        )
        return Story(end, ago, visible_evictions(self.ended.took(name), request_context))

    async def stats(self) -> m.StatsReply:
        return await self._query(m.StatsReply, m.StatsQuery)

    async def counters(self) -> m.StatsReply:
        """As stats(), at no cost that grows with the cache."""
        return await self._query(m.StatsReply, m.CountersQuery)

    async def load(self) -> m.LoadReply:
        """How much room there is for one answer more. Out of rotation the node drains to whoever
        chooses between nodes, though it takes requests still."""
        load = await self._query(m.LoadReply, m.LoadQuery)
        return replace(load, draining=load.draining or self.rotation.left)

    async def flush(self) -> int:
        """Returns how many pages and checkpoints were dropped."""
        return (await self._query(m.FlushReply, m.FlushCache)).dropped

    async def tree(
        self,
        limit: int,
        under: m.NodeName | None = None,
        prefix: m.Tokens | None = None,
        salt: bytes = b"",
    ) -> PackedTree | None:
        """As TreeQuery and TreeReply say."""
        reply = await self._query(
            m.TreeReply, lambda query: m.TreeQuery(query, limit, under, prefix, salt)
        )
        return reply.view

    async def watch(
        self, stream: str, poll_seconds: float, caller: Caller = ANYBODY
    ) -> AsyncGenerator[PackedEvents, None]:
        """The cache's events as batches, a snapshot first; none that are empty. `stream`: all
        usable or spelled. Close it (contextlib.aclosing) to end the watch. Raises WatcherLimit."""
        with self.watchers.held(caller):
            opened = await self._query(m.WatchOpened, lambda query: m.WatchCache(query, stream))
            try:
                while True:
                    reply = await self._query(
                        m.EventsReply, lambda query: m.ReadEvents(query, opened.watch)
                    )
                    if len(reply.batch) > 0 or reply.batch.is_snapshot:
                        yield reply.batch
                    else:
                        await asyncio.sleep(poll_seconds)
            finally:
                self._post(m.EndWatch(opened.watch))

    async def drain(self) -> None:
        """The node leaves the rotation, and after the grace the engine refuses new requests;
        returns when everything in flight has ended. Raises RequestAborted where undrain() came
        first."""
        self.rotation.leave()
        await self.rotation.grace()
        if not self.rotation.left or not (await self._query(m.Drained, m.Drain)).at_rest:
            raise RequestAborted("this node takes requests again: drain it once more")

    def undrain(self) -> None:
        """The node takes requests again, and is in rotation. Raises RequestRejected once it
        retires."""
        self._check_alive()
        if self._retires:
            raise RequestRejected(
                m.RequestError(m.ErrorKind.DRAINING, "this node is being stopped; try another")
            )
        self.rotation.come_back()
        self._post(m.Undrain())

    async def leave(self) -> None:
        """Leave the rotation for good. Returns when the grace is over."""
        self._retires = True
        self.rotation.leave()
        await self.rotation.grace()

    async def retire(self) -> None:
        """leave() and drain(). Returns when the calls that answer have ended too: a client that
        reads slowly gets all that was computed for it."""
        await self.leave()
        await self.drain()
        await self.calls.over()

    async def leave_to_heirs(self) -> m.LeftToHeirs:
        """The engine has prefill nodes pull the most valuable states that they lack; returns when
        there is nothing more to leave and nothing is in flight, or soon after end_leaving()."""
        return await self._query(m.LeftToHeirs, m.LeaveToHeirs)

    def end_leaving(self) -> None:
        self._post(m.EndLeaving())

    async def open_cursor(self, salt: bytes) -> int:
        return (await self._query(m.CursorOpened, lambda query: m.OpenCursor(query, salt))).cursor

    async def fork_cursor(self, cursor: int) -> int:
        return (await self._query(m.CursorOpened, lambda query: m.ForkCursor(query, cursor))).cursor

    def close_cursor(self, cursor: int) -> None:
        self._post(m.CloseCursor(cursor))

    def _check_alive(self) -> None:
        if self._lost is not None:
            raise RequestRejected(self._lost)

    async def _query(self, reply: type[ReplyT], ask: Callable[[int], m.Inbox]) -> ReplyT:
        self._check_alive()
        query_id = next(self._query_ids)
        future: asyncio.Future[Any] = self._loop.create_future()
        self._queries[query_id] = future
        self._post(ask(query_id))
        try:
            answer = await future
        except asyncio.CancelledError:
            # The reply may have come after the caller was last run, and before he was cancelled.
            if not future.cancelled() and future.exception() is None:
                self._close_opened(future.result())
            raise
        assert isinstance(answer, reply), f"query {query_id} was answered by {answer}"
        return answer

    def take(
        self, messages: Sequence[m.TokenOut | m.TokensOut | m.PromptScored | Observed | Reply]
    ) -> None:
        """As deliver(), on the event loop and of a front's messages alone: in order. One that
        cannot be dispatched leaves the others theirs."""
        tokens = 0
        for message in m.tokens_apart(messages):
            try:
                if type(message) is m.TokenOut:
                    tokens += 1
                    unread = self._unread.get(message.request_id)
                    if unread is not None and not unread.put(message):
                        self._post(m.Abort(message.request_id))
                elif isinstance(message, m.PromptScored):
                    self._hand_scores_on(message)
                else:
                    self._dispatch(message)
            except Exception:
                log.exception("a message of the engine was dropped: %s", type(message).__name__)
        if tokens:
            try:
                self._observer.count_tokens(tokens)
            except Exception:
                log.exception("what counts tokens broke")

    def _hand_scores_on(self, message: m.PromptScored) -> None:
        sink = self._scores.get(message.request_id)
        if sink is not None:
            sink(message)

    def _dispatch(self, message: Observed | Reply) -> None:
        if isinstance(message, Reply):
            self._answer(message)
            return
        try:
            self._observer.observe(message)
        except Exception:
            # Who waits for the answer gets it, whether it was counted or not.
            log.exception("what observes messages broke: %s", type(message).__name__)
        if isinstance(message, m.Evicted):
            self.ended.evicted(message)
        if not isinstance(message, m.Finished | m.Rejected):
            return
        self.ended.add(message)
        unread = self._unread.pop(message.request_id, None)
        if unread is None:
            return
        self._names.end(message.request_id)
        unread.end(RequestRejected(message.error) if isinstance(message, m.Rejected) else message)

    def _answer(self, reply: Reply) -> None:
        future = self._queries.pop(reply.query_id, None)
        if future is not None and not future.done():
            future.set_result(reply)
        else:
            self._close_opened(reply)

    def _close_opened(self, reply: Reply) -> None:
        """Close the object that the engine opened for a caller who has left."""
        if isinstance(reply, m.CursorOpened):
            self._post(m.CloseCursor(reply.cursor))
        elif isinstance(reply, m.WatchOpened):
            self._post(m.EndWatch(reply.watch))
