"""The asyncio side of the message exchange with an engine.

Owns the table of requests in flight and of open queries, the log of ended requests, and the
callers' present usage. Callers name requests, each in a separate namespace (RequestNames).
Independent of gRPC, sessions and text. All methods run on the event loop's thread, except
`deliver`, called from the engine's thread. Invariants: every Submit gets exactly one Finished or
Rejected from the engine, and its id is taken until then. An iterator closed early posts Abort. The
unread tokens of a request are bounded, and a reader over the bound is cut off.
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
from tasuki.pycache.keys import Keys
from tasuki.pycache.packed import PackedEvents, PackedTree
from tasuki.pycache.weights_namespace import START, WeightsNamespace
from tasuki.server.auth.callers import ANYBODY, Caller
from tasuki.server.auth.limits import CallerLimits, media_bytes
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
"""A function to send admitted prompts to the engine in place of this client. The prompts carry the
engine's request ids."""


class Answers(Protocol):
    """The part of EngineClient for reading answers: tokens in order, then Finished. Closing the
    iterator aborts the request."""

    def generate(
        self, submit: m.Submit, request_context: RequestContext
    ) -> AsyncGenerator[AnswerPart, None]: ...
    def abort(self, request_id: m.RequestId, caller: Caller) -> None: ...


class Answering(Protocol):
    """The part of EngineClient for answering clients' calls."""

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
    | m.AnswersPaused
    | m.WeightsUpdated
    | m.LeftToDrainTargets
)
ReplyT = TypeVar("ReplyT", bound=Reply)

Observed = (
    m.Submit
    | m.Finished
    | m.Rejected
    | m.Evicted
    | m.TransferEnded
    | m.HandoverCancelled
    | m.StateLeft
    | m.StateFetched
)
_OWN = frozenset(get_args(Observed | Reply)) | {m.TokenOut, m.TokensOut, m.PromptScored}
_OWN_ALONE = _OWN - {m.HandoverCancelled}
"""Message types for the front alone. A cancelled hand-over is not one of them, because the
hand-over's control needs it too."""


def parted(
    messages: Sequence[m.Outbox],
) -> tuple[list[m.TokenOut | m.PromptScored | Observed | Reply], list[m.Outbox]]:
    """Return two lists of an engine's messages: those for a front, and those for the hand-over's
    control. A cancelled hand-over is in both."""
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
    """Return the submits with the engine's request ids in place of the callers'. names: the
    engine's ids for all answers in order, forks included. context: names each submit's queue."""
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
    """The record of an ended request. end: how the request ended. seconds_ago: time since its end.
    took: cached states evicted for it, oldest first."""

    end: m.Finished | m.Rejected
    seconds_ago: float
    took: tuple[m.Eviction, ...]


class RequestObserver:
    """An observer of an EngineClient's requests and results, on its event loop. This base class
    does nothing."""

    def begin(self, request: m.RequestId, request_context: RequestContext) -> None:
        """Record an admitted request, with its context."""

    def observe(self, message: Observed) -> None:
        """Record a submit, its end, evictions, or the end of a transfer."""

    def count_tokens(self, count: int) -> None:
        """Count the tokens in one delivery of the engine."""


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
        """Set up the client. post: sends a message to the engine, from any thread.

        handover: takes hand-over messages on the engine's thread; None if the role has none.
        limits: callers' limits; None: no limits. queue_limit: largest number of unread tokens of
        one reader. drain_grace: seconds between a call of drain and the first refusal.
        """
        self._post = post
        self._loop = loop
        self._handover = handover
        self._queue_limit = queue_limit
        self._observer = observer or RequestObserver()
        limits = limits or CallerLimits.none()
        self._limits = limits.rates
        self._requests = limits.requests
        self._pictures = limits.pictures
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
        self.weights = START
        """Namespace of the weights in use, known from the last update's answer."""
        self._lost: m.RequestError | None = None
        self._retires = False
        self.http_address = ""
        """HOST:PORT of the node's HTTP server, reported to clients of its gRPC; empty until
        known."""

    def deliver(self, messages: Sequence[m.Outbox]) -> None:
        """Deliver the messages of an engine's step, on the engine's thread. All messages for
        callers wake the event loop once; each hand-over message wakes its own loop. Raises
        TypeError if the role has no hand-over."""
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
        """End all requests, queries and graces in flight and reject new calls with `reason`,
        because the engine has died."""
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
        """Return the cause of the engine's death; None while it is alive."""
        return None if self._lost is None else self._lost.message

    async def admit(self, caller: Caller) -> None:
        """Count one request against its caller's limit a minute, before any of it is read. Raises
        RequestLimit (too many in flight; the request is then not counted) and RateLimited."""
        self._requests.check(caller)
        self._limits.admit_request(caller)

    @asynccontextmanager
    async def admitted(self, caller: Caller, given: m.RequestId) -> AsyncIterator[m.RequestId]:
        """Call admit(). Inside `with`, reserve a request id unique among the caller's calls, and
        yield it. It is `given` unless another of these calls has it."""
        await self.admit(caller)
        with self.reserved(caller, given) as reserved:
            yield reserved

    def reserved(self, caller: Caller, given: m.RequestId) -> AbstractContextManager[m.RequestId]:
        """Reserve a request id, as RequestNames.reserved."""
        return self._names.reserved(caller, given)

    def awaits_end(self, name: m.RequestId) -> bool:
        """Return True from admission until the engine has ended the request. name: the engine's id
        of the request."""
        return name in self._unread

    def answered(self, caller: Caller, tokens: int) -> None:
        """Count the tokens of an answer written by another process against the caller's limits."""
        self._limits.answered(caller, tokens)

    async def generate(
        self,
        submit: m.Submit,
        request_context: RequestContext = ANONYMOUS,
        sink: TokenSink | None = None,
        scores: ScoreSink | None = None,
    ) -> AsyncGenerator[AnswerPart, None]:
        """Yield the answer's tokens in order, all waiting ones together, except the tokens taken by
        the sink. The last item is one Finished, with the usage visible to its caller. scores:
        receives the prompt's scores, if requested, before any token of the answer. Raises
        RequestRejected, DuplicateRequest, SlowReader, RequestLimit, RateLimited, MediaLimit, and
        the sink's exceptions.

        Close the iterator (contextlib.aclosing) to abort the request.
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
        """Return the answers to a call's prompts, each as from generate(). A prompt's forks
        (further answers) follow its first answer. sinks: one for each answer. scores: one for each
        prompt. Each prompt and answer counts against its caller's limits. post: posts the admitted
        submits with the engine's request ids; tokens then arrive elsewhere. On entering, raises as
        generate(), and then no request was made. On leaving, requests still running are aborted."""
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
        """Start all requests of a call inside `with`, or none if it raises. On leaving, requests
        still running are aborted."""
        self._check_alive()
        caller = request_context.caller
        given = [name for submit in submits for name in submit.answer_ids]
        for name in given:
            if self._names.is_in_flight(caller, name):
                raise DuplicateRequest(
                    f"request_id {name!r} is in flight: use another, or leave it empty"
                )
        media = sum(media_bytes(submit.pictures) for submit in submits)
        with self._requests.held(caller, len(given)), self._pictures.hold(caller, media):
            if len(submits) > 1:
                # The call itself was admitted as one request.
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
        """Return the sink. If token limits exist, the returned sink counts its tokens against the
        caller's limits."""
        if sink is None or not self._limits.count_tokens:
            return sink

        def take(tokens: Sequence[m.TokenOut]) -> bool:
            taken = sink(tokens)
            if taken:
                self._limits.answered(caller, len(tokens))
            return taken

        return take

    def abort(self, request_id: m.RequestId, caller: Caller) -> None:
        """Abort the request. Its iterator ends with Finished(ABORT) if it was still running.
        Idempotent; an unknown id is ignored. Ignored if the request is another caller's, unless the
        caller is an operator."""
        name = self._names.find(caller, request_id)
        if name is not None:
            self._post(m.Abort(name))

    def story(self, request_id: str, request_context: RequestContext) -> Story:
        """Return the record of an ended request, as visible to its caller. Raises UnknownRequest if
        its end is not remembered. It is raised for another caller's request too, unless the caller
        is an operator."""
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
        """Return the counters of stats(), at a cost independent of the cache's size."""
        return await self._query(m.StatsReply, m.CountersQuery)

    async def load(self) -> m.LoadReply:
        """Return the node's load, for the choice of a node for one more answer. Out of load
        balancers' rotation the node reports draining, though it still takes requests."""
        load = await self._query(m.LoadReply, m.LoadQuery)
        return replace(load, draining=load.draining or self.rotation.left)

    async def flush(self) -> int:
        """Drop the cache entries not in use. Return the number of dropped pages and checkpoints."""
        return (await self._query(m.FlushReply, m.FlushCache)).dropped

    async def pause(self, mode: m.PauseMode) -> int:
        """Pause all requests. Return the number of requests not over, once no forward runs."""
        reply = await self._query(m.AnswersPaused, lambda query: m.PauseAnswers(query, mode))
        return reply.requests

    async def resume(self) -> None:
        """Go on after pause(). Without a pause, do nothing."""
        await self._query(m.AnswersPaused, m.ResumeAnswers)

    async def update_weights(
        self, folder: str, mode: m.PauseMode, version: str
    ) -> m.WeightsUpdated:
        """Replace the weights, all or none, as UpdateWeights does. Return its answer."""
        return await self._query(
            m.WeightsUpdated, lambda query: m.UpdateWeights(query, folder, mode, version)
        )

    async def tree(
        self,
        limit: int,
        under: m.NodeName | None = None,
        prefix: Keys | None = None,
        salt: bytes = b"",
    ) -> PackedTree | None:
        """Return a view of the cache's radix tree. The arguments and the result are those of
        TreeQuery and TreeReply."""
        reply = await self._query(
            m.TreeReply, lambda query: m.TreeQuery(query, limit, under, prefix, salt)
        )
        return reply.view

    async def watch(
        self, stream: str, poll_seconds: float, caller: Caller = ANYBODY
    ) -> AsyncGenerator[PackedEvents, None]:
        """Yield the cache's events as batches, a snapshot first; no empty batches except snapshots.
        `stream`: all, usable or spelled. poll_seconds: pause after an empty batch. Close the
        iterator (contextlib.aclosing) to end the watch. Raises WatcherLimit."""
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
        """Leave the load balancers' rotation. After the grace, the engine rejects new requests.
        Return when all requests in flight have ended. Raises RequestAborted if undrain() came
        first, RequestRejected if the engine has died."""
        self.rotation.leave()
        await self.rotation.grace()
        if not self.rotation.left or not (await self._query(m.Drained, m.Drain)).at_rest:
            raise RequestAborted("this node takes requests again: drain it once more")

    def undrain(self) -> None:
        """Take requests again, and return to the load balancers' rotation. Raises RequestRejected
        once the node retires or its engine has died."""
        self._check_alive()
        if self._retires:
            raise RequestRejected(
                m.RequestError(m.ErrorKind.DRAINING, "this node is being stopped; try another")
            )
        self.rotation.come_back()
        self._post(m.Undrain())

    async def leave(self) -> None:
        """Leave the load balancers' rotation for good. Returns when the grace is over."""
        self._retires = True
        self.rotation.leave()
        await self.rotation.grace()

    async def retire(self) -> None:
        """Call leave() and drain(). Returns when the calls being answered have ended too, so a slow
        client gets everything computed for it."""
        await self.leave()
        await self.drain()
        await self.calls.over()

    async def leave_to_drain_targets(self) -> m.LeftToDrainTargets:
        """Migrate the most valuable cached states to prefill nodes without them, and return their
        counts by outcome. Returns when no state is left to migrate and no request is in flight, or
        soon after end_leaving()."""
        return await self._query(m.LeftToDrainTargets, m.LeaveToDrainTargets)

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
            # The reply may have arrived after the caller last ran, and before its cancellation.
            if not future.cancelled() and future.exception() is None:
                self._close_opened(future.result())
            raise
        assert isinstance(answer, reply), f"query {query_id} was answered by {answer}"
        return answer

    def take(
        self, messages: Sequence[m.TokenOut | m.TokensOut | m.PromptScored | Observed | Reply]
    ) -> None:
        """Handle the engine's messages for a front in order, on the event loop, as deliver() does.
        A message with a failure is logged and does not stop the others."""
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
            # The message still reaches its reader, even if its count failed.
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
        if isinstance(reply, m.WeightsUpdated):
            # The names change too if the caller of the update is gone.
            self.weights = WeightsNamespace(reply.names)
        future = self._queries.pop(reply.query_id, None)
        if future is not None and not future.done():
            future.set_result(reply)
        else:
            self._close_opened(reply)

    def _close_opened(self, reply: Reply) -> None:
        """Close the cursor or watch opened by the engine for a caller already gone."""
        if isinstance(reply, m.CursorOpened):
            self._post(m.CloseCursor(reply.cursor))
        elif isinstance(reply, m.WatchOpened):
            self._post(m.EndWatch(reply.watch))
