"""A front worker's substitutes for the node's single engine client, sessions and stored responses.

WorkerClient is a front worker's client of the engine: like EngineClient for clients' calls, but
over two sockets. It owns the answers not read yet by its clients. It asks the registry for
everything unique in a node. Requests and tokens travel over the worker's own link to the engine.
One event loop's thread. Invariants: a request is posted only after the registry has admitted it,
under the id given by the registry. A request not read to its end is aborted. The registry learns
the end of each request.

AskedSessions and AskedResponses ask the registry for sessions and stored responses.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace
from typing import Any

import msgspec

from tasuki.engine import messages as m
from tasuki.engine.apart.control import RequestTraced
from tasuki.engine.apart.frames import TakeMessages, written
from tasuki.server.auth.callers import Caller
from tasuki.server.auth.tenants import ANONYMOUS, RequestContext, visible_end
from tasuki.server.drain import CallsInProgress
from tasuki.server.engine_client import ScoreSink, renamed
from tasuki.server.errors import RequestRejected
from tasuki.server.responses.stored_responses import Keep, StoredResponse, StoredValues
from tasuki.server.sessions import Appended, LogEnd, SessionInput, Tail, TurnPrompt
from tasuki.server.unread_answer import AnswerPart, SinkTurn, TokenSink, UnreadAnswer
from tasuki.utils.signatures import Counts

from . import messages as w
from .links import RegistryLink

log = logging.getLogger(__name__)

_UNREAD_TOKENS = 4096
_TOOK_TOKENS = 64
"""Number of a call's tokens taken before their number is sent to the registry, if callers have
limits."""


class WorkerClient:
    """An Answering over a front worker's sockets to the registry and to the engine."""

    def __init__(
        self,
        link: RegistryLink,
        post: TakeMessages,
        chat_tokens: Counts,
        counts_tokens: bool,
    ) -> None:
        """Build the client on the worker's event loop. post: sends messages to the engine, in
        order. chat_tokens: returns the counts of NodeReport.chat_tokens so far. counts_tokens: True
        if callers' tokens are limited."""
        self._link = link
        self._post = post
        self._chat_tokens = chat_tokens
        self._counts_tokens = counts_tokens
        self.calls = CallsInProgress()
        self._unread: dict[m.RequestId, UnreadAnswer] = {}
        self._scores: dict[m.RequestId, ScoreSink] = {}
        self._turn = SinkTurn(asyncio.get_running_loop())
        self._own: dict[tuple[str, m.RequestId], m.RequestId] = {}
        """The engine's id of each request, by the caller's name and the caller's own id."""
        self._lost: m.RequestError | None = None

    @property
    def lost(self) -> str | None:
        return None if self._lost is None else self._lost.message

    def engine_lost(self, reason: str) -> None:
        """End all calls of this worker with the reason, like EngineClient.engine_lost."""
        self._lost = m.RequestError(m.ErrorKind.INTERNAL, reason)
        for unread in self._unread.values():
            unread.end(RequestRejected(self._lost))
        self._unread.clear()

    async def admit(self, caller: Caller) -> None:
        await self._link.ask(w.Admit(self._link.number(), caller))

    @asynccontextmanager
    async def admitted(self, caller: Caller, given: m.RequestId) -> AsyncIterator[m.RequestId]:
        call = self._link.number()
        asked = self._link.ask(w.Reserve(call, caller, given))
        try:
            reply: w.Reserved = await asked
            yield reply.request_id
        finally:
            self._link.notify(w.Release(call))

    async def generate(
        self,
        submit: m.Submit,
        request_context: RequestContext = ANONYMOUS,
        sink: TokenSink | None = None,
        scores: ScoreSink | None = None,
    ) -> AsyncGenerator[AnswerPart, None]:
        """Yield the parts of one answer, like EngineClient.generate."""
        asking = self.generate_all([submit], request_context, [sink], [scores])
        async with asking as (parts,), aclosing(parts):
            async for part in parts:
                yield part

    @asynccontextmanager
    async def generate_all(
        self,
        submits: Sequence[m.Submit],
        request_context: RequestContext,
        sinks: Sequence[TokenSink | None],
        scores: Sequence[ScoreSink | None],
    ) -> AsyncIterator[list[AsyncGenerator[AnswerPart, None]]]:
        """Yield the streams of a call's answers, like EngineClient.generate_all."""
        if self._lost is not None:
            raise RequestRejected(self._lost)
        call = _EnteredCall(self._link, self._counts_tokens, len(sinks))
        unread = [UnreadAnswer(_UNREAD_TOKENS, call.counting(sink), self._turn) for sink in sinks]
        caller = request_context.caller.name
        owned = [(caller, given) for submit in submits for given in submit.answer_ids]

        def let_in(reply: w.Entered) -> None:
            named = renamed(submits, reply.names, request_context)
            traced = [
                RequestTraced(name, header)
                for name, header in zip(reply.names, reply.headers, strict=True)
                if header
            ]
            self._post([*traced, *named])
            call.names = reply.names
            self._unread.update(zip(reply.names, unread, strict=True))
            self._own.update(zip(owned, reply.names, strict=True))
            for submit, scored in zip(named, scores, strict=True):
                if scored is not None:
                    self._scores[submit.request_id] = scored

        # Of pictures the registry learns the length only.
        asking = tuple(map(written, submits))
        enter = w.Enter(call.number, asking, request_context, dict(self._chat_tokens()))
        asked = self._link.ask(enter, let_in)
        try:
            await asked
            yield [self._read(call, *each, request_context) for each in enumerate(unread)]
        finally:
            # A refusal's traceback has this frame. A cycle would keep the request and its media.
            del asked
            for answer in unread:
                answer.close()
            for given, name, answer in zip(owned, call.names, unread, strict=False):
                self._scores.pop(name, None)
                if self._own.get(given) == name:
                    del self._own[given]
                if self._unread.get(name) is answer:
                    self._post([m.Abort(name)])
            call.leave()

    async def _read(
        self, call: "_EnteredCall", place: int, unread: UnreadAnswer, context: RequestContext
    ) -> AsyncGenerator[AnswerPart, None]:
        try:
            while not isinstance(part := await unread.read(), m.Finished):
                call.took(len(part))
                yield part
        except RequestRejected:
            await call.end(place)
            raise
        await call.end(place)
        yield visible_end(part, context)

    def abort(self, request_id: m.RequestId, caller: Caller) -> None:
        """Abort a request of this worker; other ids are ignored. The registry aborts requests of
        other workers."""
        name = self._own.get((caller.name, request_id))
        if name is not None:
            self._post([m.Abort(name)])

    def abort_asked(self, name: m.RequestId) -> None:
        if name in self._unread:
            self._post([m.Abort(name)])

    def take(self, messages: Sequence[Any]) -> None:
        """Pass on the messages of an engine's step for this worker's requests, despite errors."""
        for message in m.tokens_apart(messages):
            try:
                self._dispatch(message)
            except Exception:
                log.exception("a message of the engine was dropped: %s", type(message).__name__)

    def _dispatch(self, message: Any) -> None:
        if isinstance(message, m.PromptScored):
            scored = self._scores.get(message.request_id)
            if scored is not None:
                scored(message)
            return
        unread = self._unread.get(message.request_id)
        if isinstance(message, m.TokenOut):
            if unread is not None and not unread.put(message):
                self._post([m.Abort(message.request_id)])
            return
        self._unread.pop(message.request_id, None)
        if unread is not None:
            rejected = isinstance(message, m.Rejected)
            unread.end(RequestRejected(message.error) if rejected else message)


class _EnteredCall:
    """The requests of one call, as admitted by the registry. names: the engine's id of each answer;
    empty before they were posted."""

    def __init__(self, link: RegistryLink, counts_tokens: bool, answers: int) -> None:
        self._link = link
        self._counts = counts_tokens
        self.number = link.number()
        self.names: tuple[m.RequestId, ...] = ()
        self._unread = answers
        self._tokens = 0

    def counting(self, sink: TokenSink | None) -> TokenSink | None:
        if sink is None or not self._counts:
            return sink

        def take(tokens: Sequence[m.TokenOut]) -> bool:
            taken = sink(tokens)
            if taken:
                self.took(len(tokens))
            return taken

        return take

    def took(self, tokens: int) -> None:
        self._tokens += tokens
        if self._counts and self._tokens >= _TOOK_TOKENS:
            self._link.notify(w.Took(self.number, self._counted()))

    def leave(self) -> None:
        """Report to the registry: no client reads the call's answers any more. Do nothing if every
        answer has ended."""
        if self._unread:
            self._unread = 0
            self._link.notify(w.Leave(self.number, self._counted(), bool(self.names)))

    async def end(self, answer: int) -> None:
        """Report to the registry: the client has read the answer at index `answer` to its end.
        Return once the registry has seen the engine's end too. Do nothing after leave()."""
        if not self._unread:
            return
        self._unread -= 1
        # Send it before the wait: if the client leaves now, the recorded ends stay.
        await self._link.ask(w.End(self._link.number(), self.number, answer, self._counted()))

    def _counted(self) -> int:
        """Return the number of taken tokens not yet counted by the registry, and reset it."""
        tokens, self._tokens = self._tokens, 0
        return tokens


class AskedSessions:
    """The Sessions interface over a front worker's link to the registry. One event loop's
    thread."""

    def __init__(self, link: RegistryLink) -> None:
        self._link = link

    async def end(self, caller: Caller, session_id: str) -> LogEnd:
        reply: w.LogEndRead = await self._link.ask(
            w.ReadLogEnd(self._link.number(), caller, session_id)
        )
        return reply.end

    async def append(
        self, caller: Caller, session_id: str, after: Tail, added: SessionInput
    ) -> Appended:
        reply: w.AppendedToLog = await self._link.ask(
            w.AppendToLog(self._link.number(), caller, session_id, after, added)
        )
        return reply.appended

    @asynccontextmanager
    async def turn(
        self, caller: Caller, tenant: str | None, session_id: str
    ) -> AsyncIterator["_AskedTurn"]:
        link, begun = self._link, self._link.number()
        asked = link.ask(w.BeginTurn(begun, caller, tenant, session_id))
        try:
            reply: w.TurnBegun = await asked
        except BaseException:
            # Rejected, or the client left: the caller waits for no reply.
            link.notify(w.EndTurn(link.number(), begun, None))
            raise
        turn = _AskedTurn(reply.prompt)
        try:
            yield turn
        except (asyncio.CancelledError, GeneratorExit):
            link.notify(w.EndTurn(link.number(), begun, turn.answer))
            raise
        except BaseException:
            await link.ask(w.EndTurn(link.number(), begun, turn.answer))
            raise
        # Send it before the wait: if the client leaves now, its turn stays.
        await link.ask(w.EndTurn(link.number(), begun, turn.answer))


class _AskedTurn:
    def __init__(self, prompt: TurnPrompt) -> None:
        self.prompt = prompt
        self.answer: tuple[int, ...] | None = None

    def keep(self, answer: Sequence[int]) -> None:
        self.answer = tuple(answer)


class AskedResponses:
    """The store of responses over a front worker's link to the registry."""

    unstored: Keep | None = None
    values: StoredValues | None = None

    def __init__(self, link: RegistryLink) -> None:
        """Set up the store. Call it on the link's event loop."""
        self._link = link
        self._loop = asyncio.get_running_loop()

    def put(self, context: RequestContext, response: StoredResponse) -> None:
        """Send the response to the registry's store. Log it if the registry cannot keep it."""
        turn = response.turn
        kept: Any = turn.pictures.emptied() if turn.pictures.sent else msgspec.UNSET
        note = w.KeepResponse(context, replace(response, turn=replace(turn, pictures=kept)))
        try:
            self._link.notify(note)
        except OSError as error:
            log.warning("a response is not stored, because its pictures cannot be: %s", error)

    def get(self, context: RequestContext, response_id: str) -> StoredResponse | None:
        """Return a stored response; None if there is none. REQUIRES: a thread other than the
        loop's."""
        asking = self._found(context, response_id)
        found = asyncio.run_coroutine_threadsafe(asking, self._loop).result()
        if found is None or not found.turn.pictures.sent:
            return found
        pictures = found.turn.pictures.filled()
        return replace(found, turn=replace(found.turn, pictures=pictures))

    async def _found(self, context: RequestContext, response_id: str) -> StoredResponse | None:
        reply: w.ResponseFound = await self._link.ask(
            w.FindResponse(self._link.number(), context, response_id)
        )
        return reply.response
