"""GET /v1/responses: a WebSocket for responses, one after the other.

ResponseSocket owns the response in progress on one WebSocket. One event loop's thread. Invariants:
one response is made at a time. Each is admitted, counted and named as a separate request. A
client's disconnect ends its response. Every wait for a client has a timeout.

SocketReply: a response sent over its WebSocket; each event of its stream is a message. One event
loop's thread. Invariant: an event is sent at least every KEEP_ALIVE_SECONDS, because some clients
ignore pings.

SocketTurns: the last response of a WebSocket. The client may continue it even if it is not stored.
Owns the response, and the count of its memory against its caller. Any thread reads; only the event
loop's thread writes. Invariant: at most one response is kept, counted in bytes. If it is too large
for its caller, none is kept.

read_create() reads a client's message: a request for a response, or for a warm-up. A warm-up
(`generate: false`) computes a prompt in advance, and read_warm_up() reads it. Both on any thread.
The computed tokens are the prefix shared by every next prompt: up to the end of the conversation's
last message. The prefix is rendered with a question after it, because a template may reject a
conversation without one.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import msgspec
import numpy as np
from aiohttp import WSCloseCode, web

from tasuki.engine.messages import Finished, RequestId
from tasuki.server.auth.limits import Hold, submit_bytes
from tasuki.server.auth.tenants import RequestContext
from tasuki.server.engine_client import Answering
from tasuki.server.errors import InvalidField, ServerError
from tasuki.server.http.access import http_caller, http_request_context
from tasuki.server.http.errors import (
    RETRIED,
    HttpRefusal,
    count_failure,
    error_body,
    error_status,
    retry_seconds,
)
from tasuki.server.http.headers import http_request_id, rename_request
from tasuki.server.http.reply import (
    FIRST_LOOK_SECONDS,
    KEEP_ALIVE_SECONDS,
    AnswerWriter,
    Choice,
    bodies_of,
)
from tasuki.server.http.web_sockets import OPEN_SOCKETS, TextSocket
from tasuki.server.openai.generation import ServedModel, asked_choices, read_submit
from tasuki.server.openai.request_fields import RequestFields
from tasuki.server.request_checks import MAX_REQUEST_ID
from tasuki.server.responses.asked_turn import AskedTurn, keeper, read_turn
from tasuki.server.responses.response_request import (
    AskedResponse,
    TooLongResponse,
    read_response_options,
    read_response_request,
    refuse_unserved,
    response_head,
)
from tasuki.server.responses.response_writer import ResponseWriter
from tasuki.server.responses.stored_responses import (
    NO_CONTEXT,
    Responses,
    StoredResponse,
    StoredValues,
    TurnRecord,
)
from tasuki.server.responses.tools import read_response_tools
from tasuki.server.text.chat_message import ChatMessage
from tasuki.server.text.parsing.answer_parser import AnswerParser
from tasuki.server.text.rendering.chat_template import RenderedPrompt
from tasuki.server.text.text_answer import Thinking, first_looks
from tasuki.server.unread_answer import AnswerPart


class SocketTurns:
    """The responses a WebSocket's client may continue: the stored ones, and the socket's last one
    even if it is not stored."""

    def __init__(self, store: Responses, hold: Hold) -> None:
        """store: the stored responses. hold: memory count for the socket's last response."""
        self._store = store
        self._hold = hold
        self._last: StoredResponse | None = None

    @property
    def values(self) -> StoredValues | None:
        return self._store.values

    def put(self, context: RequestContext, response: StoredResponse) -> None:
        self._store.put(context, response)
        self.unstored(context, response)

    def unstored(self, context: RequestContext, response: StoredResponse) -> None:
        """Keep the response as the socket's last one, but do not store it. Keep none if it is too
        large for its caller."""
        self._last = None
        try:
            self._hold.resize(response.size)
        except ServerError:
            # The client then sends the whole conversation, as over a new socket.
            self._hold.resize(0)
        else:
            self._last = response

    def get(self, context: RequestContext, response_id: str) -> StoredResponse | None:
        last = self._last
        if last is not None and last.id == response_id:
            return last
        return self._store.get(context, response_id)

    def drop(self, response_id: str | None) -> None:
        """Drop the socket's last response if it has this id. Called if the response continuing it
        failed."""
        if self._last is not None and self._last.id == response_id:
            self._last = None
            self._hold.resize(0)


_QUESTIONS = (ChatMessage("user", "?"), ChatMessage("user", "What"))
"""Two questions with different first letters. The common prefix of their prompts ends before the
question."""


@dataclass(frozen=True)
class EmptyResponse:
    """A warm-up request with an empty prompt: its response is sent without work of the engine."""

    writer: ResponseWriter


def read_warm_up(
    model: ServedModel, turns: SocketTurns, request: web.Request, fields: RequestFields
) -> AskedResponse | EmptyResponse:
    """Read a warm-up request (`generate: false`): its prompt is computed, and no token is sampled.
    Raises InvalidRequest, PromptTooLong, PermissionDenied, HttpRefusal."""
    refuse_unserved(fields)
    tools = read_response_tools(fields)
    if fields.get("input") is None:
        fields = fields.changed(input=[])
    turn = read_turn(model, turns, request, fields, tools)
    begun = _beginning(model, turn)
    options = read_response_options(model, fields, model.max_tokens)
    sampling = replace(options.sampling, max_new_tokens=0, min_tokens=0)
    options = replace(options, sampling=sampling)
    head = response_head(model, request, fields, options)
    writer = ResponseWriter(head, AnswerParser(Thinking.NEVER, ()), tools)
    writer.leave_unanswered()
    size = head.kept_bytes
    keep = keeper(turns, request, fields, turn.named)
    if keep is not None:
        pictures = turn.kept_pictures(begun.pictures)
        record = TurnRecord(begun.tokens, turn.messages, NO_CONTEXT, pictures)
        writer.keep(record, keep)
        size += record.kept_bytes
    if not len(begun.tokens):
        return EmptyResponse(writer)
    submit = read_submit(request, fields, begun, options, model)
    return AskedResponse(submit, options, writer, size + submit_bytes(submit))


def _beginning(model: ServedModel, turn: AskedTurn) -> RenderedPrompt:
    """Return the prefix shared by the prompts of this conversation with any next question. It ends
    at the last mark (message end) in the shared tokens, or after them without a mark. Return an
    empty prompt if nothing precedes the question."""
    settings = turn.settings
    if not turn.messages and settings.instructions is None and not settings.tools:
        return RenderedPrompt(np.empty(0, dtype=np.int32))
    first, second = (turn.prompt(model, question) for question in _QUESTIONS)
    length = min(len(first.tokens), len(second.tokens))
    differ = np.flatnonzero(first.tokens[:length] != second.tokens[:length])
    common = int(differ[0]) if len(differ) else length
    marks = tuple(mark for mark in first.marks if mark <= common)
    end = marks[-1] if marks else common
    pictures = tuple(one for one in first.pictures if one.run.end <= end)
    return RenderedPrompt(first.tokens[:end], marks, pictures=pictures)


log = logging.getLogger(__name__)

_SILENCE_SECONDS = 0.5 * KEEP_ALIVE_SECONDS
"""Seconds between two checks. The longest time without an event has two of them."""

_CREATE = "response.create"

_LONGEST_SECONDS = 3600.0
"""Largest age of a WebSocket in seconds, as in OpenAI's API."""
_IDLE_SECONDS = 900.0
"""Seconds without a message before the socket is closed, while no response is in progress."""
_NUMBER_LETTERS = 12
_IN_PROGRESS = HttpRefusal(
    409, "response_in_progress", "a response is made on this socket: await its end, or open another"
)
_TOO_OLD = HttpRefusal(
    400, "websocket_connection_limit_reached", "this socket has been open for an hour: open another"
)

Asked = AskedResponse | TooLongResponse | EmptyResponse


class ResponseSockets:
    def __init__(self, engine: Answering, model: ServedModel, store: Responses) -> None:
        self._engine = engine
        self._model = model
        self._store = store

    async def open(self, request: web.Request) -> web.StreamResponse:
        """Open a WebSocket and serve it until it closes; the handler of the route. Raises
        SocketLimit, HttpRefusal."""
        sockets, model = request.app[OPEN_SOCKETS], self._model
        with (
            sockets.held(http_caller(request)),
            model.hold(request) as inbox,
            model.hold(request) as kept,
        ):
            socket = TextSocket(request, sockets, inbox)
            await socket.open()
            turns = SocketTurns(self._store, kept)
            served = ResponseSocket(self._engine, model, turns, request, socket, sockets.ending)
            try:
                await served.serve()
            except ConnectionError:
                log.debug("%s: the client has gone", http_request_id(request))
            finally:
                socket.cut()
            return socket.response


class ResponseSocket:
    """The server side of one open WebSocket: reads the client's messages and sends responses."""

    def __init__(
        self,
        engine: Answering,
        model: ServedModel,
        turns: SocketTurns,
        request: web.Request,
        socket: TextSocket,
        ending: asyncio.Event,
    ) -> None:
        """request: the HTTP request for this socket. ending: set when the server stops. Constructed
        inside a running event loop."""
        self._engine = engine
        self._model = model
        self._turns = turns
        self._request = request
        self._socket = socket
        self._ending = ending
        self._caller = http_caller(request)
        self._opened_as = http_request_id(request)[: MAX_REQUEST_ID - _NUMBER_LETTERS]
        self._count = 0
        self._previous: str | None = None
        """Id of the earlier response continued by the response in progress; None if it continues
        none."""
        self._reply: SocketReply | None = None
        self._is_refused = False
        self._reading = self._next_text()

    async def serve(self) -> None:
        """Answer the client's messages, one after the other. Return when the caller may close the
        connection. Raises ConnectionError."""
        loop = asyncio.get_running_loop()
        closes_at = loop.time() + _LONGEST_SECONDS
        ending = loop.create_task(self._ending.wait())
        try:
            while True:
                left = max(0.0, closes_at - loop.time())
                await asyncio.wait(
                    (self._reading, self._socket.refused, ending),
                    timeout=min(left, _IDLE_SECONDS),
                    return_when=asyncio.FIRST_COMPLETED,
                )
                if self._socket.refused.done():
                    error = self._socket.refused.result()
                    await self._send_error(error)
                    return await self._socket.close(_code_of(error), "send less")
                if loop.time() >= closes_at:
                    await self._send_error(_TOO_OLD)
                    return await self._socket.close(WSCloseCode.OK, str(_TOO_OLD))
                if not self._reading.done():
                    code = WSCloseCode.GOING_AWAY if ending.done() else WSCloseCode.OK
                    reason = "this node is draining" if ending.done() else "no message came"
                    return await self._socket.close(code, reason)
                body = self._reading.result()
                if body is None:
                    return None
                self._reading = self._next_text()
                await self._answer_beside_reading(body)
        finally:
            await _ended(self._reading, ending)

    def _next_text(self) -> "asyncio.Task[bytearray | None]":
        return asyncio.get_running_loop().create_task(self._socket.text())

    async def _answer_beside_reading(self, body: bytearray) -> None:
        """Answer one message, and return once it is answered or the client has left. Reject other
        messages meanwhile, except one arriving while the last event is sent."""
        self._reply, self._is_refused = None, False
        turn = asyncio.get_running_loop().create_task(self._answer(body))
        refused = self._socket.refused
        try:
            while not turn.done() and not refused.done():
                waits: list[asyncio.Future[Any]] = [turn, refused]
                if self._reading.done():
                    if self._reading.result() is None:
                        return
                    if not self._is_ending:
                        self._reading = self._next_text()
                        await self._send_error(_IN_PROGRESS)
                        continue
                else:
                    waits.append(self._reading)
                await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            if turn.done():
                turn.result()
        finally:
            await _ended(turn)

    @property
    def _is_ending(self) -> bool:
        return self._is_refused or (self._reply is not None and self._reply.ends)

    async def _answer(self, body: bytearray) -> None:
        """Answer one message with a response, or with an error message. Raises ConnectionError."""
        self._count += 1
        given = RequestId(f"{self._opened_as}.{self._count}")
        self._previous = None
        try:
            async with self._engine.admitted(self._caller, given) as request_id:
                rename_request(self._request, request_id)
                with self._engine.calls.one(), self._model.hold(self._request) as hold:
                    hold.resize(len(body))
                    await self._send_response(body, hold)
        except ConnectionError:
            raise
        except Exception as error:
            if not isinstance(error, ServerError | HttpRefusal):
                log.exception("%s failed", given)
            count_failure(self._request, error)
            self._turns.drop(self._previous)
            self._is_refused = True
            await self._send_error(error)

    async def _send_response(self, body: bytearray, hold: Hold) -> None:
        request, model = self._request, self._model
        asked = await model.take_apart(request, hold, body, self._read)
        self._reply = reply = SocketReply(self._socket, asked.writer)
        if isinstance(asked, TooLongResponse | EmptyResponse):
            hold.resize(0)
            if isinstance(asked, EmptyResponse):
                return await reply.send_at_once(partial(asked.writer.unanswered, None))
            self._turns.drop(self._previous)
            return await reply.send_at_once(partial(asked.writer.failure, asked.error))
        hold.resize(asked.kept_bytes)
        engine, submits = self._engine, [asked.submit]
        (choice,) = await asked_choices(
            *(engine, model, request, hold, submits), asked.options, [asked.writer]
        )
        context = http_request_context(request)
        async with engine.generate_all(submits, context, [None], [None]) as answers:
            await reply.send(choice, answers)
        if reply.failed is not None:
            count_failure(request, reply.failed)
            self._turns.drop(self._previous)
        return None

    def _read(self, fields: RequestFields) -> Asked:
        """Read a request from the message's fields. Runs on a thread of the codec."""
        self._previous = previous_id(fields)
        return read_create(self._model, self._turns, self._request, fields)

    async def _send_error(self, error: Exception) -> None:
        """Send the error as a message. Raises ConnectionError."""
        await self._socket.send([error_message(error)])


def _code_of(error: Exception) -> WSCloseCode:
    return (
        WSCloseCode.MESSAGE_TOO_BIG if error_status(error) == 413 else WSCloseCode.TRY_AGAIN_LATER
    )


async def _ended(*tasks: "asyncio.Task[Any]") -> None:
    """Cancel the tasks, and return once all have ended."""
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
    for task in tasks:
        if not task.cancelled():
            task.exception()  # retrieved: otherwise asyncio logs it


class SocketReply:
    def __init__(self, socket: TextSocket, writer: AnswerWriter) -> None:
        self._socket = socket
        self._writer = writer
        self.failed: Exception | None = None
        """The error of the response, if it failed after its first events; otherwise None."""
        self.ends = False
        """True once the last event is being sent. The client may then ask for the next response."""
        self._is_silent = False

    async def send_at_once(self, last: Callable[[], bytes]) -> None:
        """Send the events of a response without a generated answer. last: returns the last event.
        Raises ConnectionError."""
        self.ends = True
        await self._send(self._writer.opening() + last())
        await self._socket.sent()

    async def send(
        self, choice: Choice, answers: Sequence[AsyncGenerator[AnswerPart, None]]
    ) -> None:
        """Send the events of a response with one answer. choice: writer of the answer. answers: the
        engine's stream of the answer, as a list of one. Raises ConnectionError. Raises ServerError
        if the answer failed before its first event."""
        writer, last = self._writer, b""
        async with first_looks(answers, FIRST_LOOK_SECONDS) as (parts,):
            keeping = asyncio.create_task(self._keep_alive())
            try:
                await self._send(writer.opening())
                last = await self._sent_parts(choice, parts)
            except ConnectionError:
                raise
            except Exception as error:
                if not isinstance(error, ServerError):
                    log.exception("%s failed", writer.id)
                self.failed = error
                last = writer.failure(error)
            finally:
                keeping.cancel()
            self.ends = True
            await self._send(last)
            await self._socket.sent()

    async def _sent_parts(self, choice: Choice, parts: AsyncIterator[AnswerPart]) -> bytes:
        """Send the events of the answer's parts as they come. Return the last events unsent."""
        async for part in parts:
            if isinstance(part, Finished):
                return choice.ending(part)
            await self._send(choice.written(part))
        raise AssertionError("an answer ended without its ending")

    async def _send(self, events: bytes) -> None:
        self._is_silent = False
        await self._socket.send(bodies_of(events))

    async def _keep_alive(self) -> None:
        """Send a keep-alive event whenever no event was sent during a whole check interval
        (_SILENCE_SECONDS), until cancelled."""
        while True:
            self._is_silent = True
            await asyncio.sleep(_SILENCE_SECONDS)
            if self._is_silent:
                try:
                    await self._send(self._writer.keep_alive())
                except ConnectionError:
                    return


def error_message(error: Exception) -> bytes:
    """Return the error message for a request rejected before its first event. It repeats the HTTP
    header `retry-after`, because some clients read the delay there."""
    status = error_status(error)
    headers = {"headers": {"retry-after": str(retry_seconds(error))}} if status in RETRIED else {}
    return msgspec.json.encode({"type": "error", "status": status, **error_body(error), **headers})


def previous_id(fields: RequestFields) -> str | None:
    """Return `previous_response_id`; None if it is absent or no text."""
    name = fields.get("previous_response_id")
    return name if isinstance(name, str) else None


def read_create(
    model: ServedModel, turns: SocketTurns, request: web.Request, fields: RequestFields
) -> Asked:
    """Read a client's message: a request for a response, or for a warm-up. Raises as
    read_response_request()."""
    kind = fields.get("type")
    if kind != _CREATE:
        raise InvalidField("type", f"must be {_CREATE}, not {kind!r:.60}")
    if fields.get("stream") is not None and not fields.flag("stream"):
        raise InvalidField("stream", "must be left out: a socket has every response as events")
    is_asked = fields.get("generate") is None or fields.flag("generate")
    fields.refuse_but("background", (False,))
    model.named(fields.text("model"))
    body = fields.changed(type=None, generate=None, stream=True)
    if is_asked:
        return read_response_request(model, turns, request, body)
    return read_warm_up(model, turns, request, body)
