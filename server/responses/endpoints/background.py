"""Responses with `background: true`, without a waiting client: begin, fetch, follow, cancel.

BackgroundResponses owns the tasks of such responses, and keeps their events for some time after
they end. One event loop's thread. Invariants: each response counts as a request in progress, and as
a request of its key. Its memory counts against its caller until its events are dropped. Only its
key and tenant can reach it. An ended response is stored.

EventLog: the events of one response, kept for clients connecting again. Owns the events. One event
loop's thread. Invariant: event number N is at index N.
"""

import asyncio
import logging
from contextlib import ExitStack

import msgspec
from aiohttp import web

from tasuki.engine.messages import Finished
from tasuki.server.auth.limits import Hold
from tasuki.server.auth.tenants import RequestContext
from tasuki.server.engine_client import Answering
from tasuki.server.errors import InvalidField, ServerError
from tasuki.server.http.access import http_request_context
from tasuki.server.http.errors import HttpRefusal, count_failure
from tasuki.server.http.reply import KEEP_ALIVE_COMMENT, EventStream
from tasuki.server.http.web_sockets import OPEN_SOCKETS
from tasuki.server.openai.generation import ServedModel, asked_choices
from tasuki.server.responses.response_request import AskedResponse
from tasuki.server.responses.response_writer import ResponseWriter

log = logging.getLogger(__name__)

_FOLLOWED_SECONDS = 300.0
"""Number of seconds after a response's end. Until then clients can still fetch its events."""
_RESPONSE_BYTES = 4096
"""Bytes of memory for a response's objects and its entry in the table of background responses."""

_EVENT_BYTES = 64
"""Bytes of memory for an event's object and its list entry, besides its text."""
_AT_ONCE = 64
_AT_ONCE_BYTES = 1 << 16
"""Limits of one write to a client: `_AT_ONCE` events, and these bytes if it has several events."""

_FALSE = ("false", "0", "")
_TRUE = ("true", "1")


class EventLog:
    def __init__(self) -> None:
        self._events: list[bytes] = []
        self._more = asyncio.Event()
        self.size = 0
        """Memory of the events in bytes."""
        self.closed = False
        """True once no more events will be added."""

    def __len__(self) -> int:
        return len(self._events)

    def add(self, events: bytes) -> int:
        """Append the events of a text with whole server-sent events. Return the added memory in
        bytes."""
        added = [event + b"\n\n" for event in events.split(b"\n\n")[:-1]]
        self._events += added
        grown = len(events) + _EVENT_BYTES * len(added)
        self.size += grown
        self._wake()
        return grown

    def close(self) -> None:
        self.closed = True
        self._wake()

    def drop(self) -> None:
        """Drop the events, and end the streams of the clients reading them."""
        self._events = []
        self.size = 0
        self.close()

    def since(self, place: int) -> tuple[bytes, int]:
        """Return some events joined, from index `place` on, and the index after the last of them. A
        long event is returned alone and not copied, because the log already counts its bytes."""
        some: list[bytes] = []
        left = _AT_ONCE_BYTES
        for event in self._events[place : place + _AT_ONCE]:
            left -= len(event)
            if some and left < 0:
                break
            some.append(event)
        return (some[0] if len(some) == 1 else b"".join(some)), place + len(some)

    async def grown(self) -> None:
        """Wait until an event is added or the log is closed."""
        if not self.closed:
            await self._more.wait()

    def _wake(self) -> None:
        self._more.set()
        self._more = asyncio.Event()


def asks_for_stream(request: web.Request) -> bool:
    """Return True if the query field `stream` asks for a stream of events. Raises InvalidField."""
    asked = request.query.get("stream", "").lower()
    if asked not in (*_FALSE, *_TRUE):
        raise InvalidField("stream", f"must be true or false, not {asked:.20}")
    return asked in _TRUE


def first_place(request: web.Request) -> int:
    """Return the number of the first event requested by the query field `starting_after`. Raises
    InvalidField."""
    after = request.query.get("starting_after")
    if after is None:
        return 0
    if not (after.isascii() and after.isdigit() and len(after) < 16):
        raise InvalidField("starting_after", f"must be an event's number, not {after:.20}")
    return int(after) + 1


async def follow(request: web.Request, events: EventLog, place: int) -> web.StreamResponse:
    """Send the events to a client, from index `place` to the last, as they are added. A client's
    disconnect ends only this call, not the response."""
    stream = EventStream(request, lambda: KEEP_ALIVE_COMMENT)
    await stream.prepare()
    try:
        while True:
            some, place = events.since(place)
            if some:
                await stream.write(some)
            elif events.closed:
                break
            else:
                await events.grown()
    except ConnectionError:
        return stream.response
    finally:
        stream.keep_no_longer()
    await stream.end(b"")
    return stream.response


class _Background(msgspec.Struct):
    background: bool = False


def is_of_background(body: bytes) -> bool:
    """Return True if a stored response was created with `background: true`. body: JSON of the
    response; all of it is parsed."""
    return msgspec.json.decode(body, type=_Background).background


def not_in_background(name: str) -> HttpRefusal:
    return HttpRefusal(
        400, "not_in_background", f"response {name!r:.100} was not made with background: true"
    )


class BackgroundResponse:
    """A response made without a waiting client. owner: name of the caller and tenant. ended: set
    once the response has ended. work: the task making the response; None after its end. dropping:
    timer to drop the events. The writer and the task, with their data of the request, are kept only
    until the end."""

    def __init__(self, context: RequestContext, writer: ResponseWriter, memory: ExitStack) -> None:
        """context: caller of the request. memory: on close, ends the count of the response's
        memory."""
        self.id = writer.id
        self.owner = context.caller.name, context.tenant
        self.events = EventLog()
        self.ended = asyncio.Event()
        self.work: asyncio.Task[None] | None = None
        self.dropping: asyncio.TimerHandle | None = None
        self._writer: ResponseWriter | None = writer
        self._body = b""
        self._memory = memory

    @property
    def size(self) -> int:
        """Return the memory in bytes of an ended response: its body and its events."""
        return _RESPONSE_BYTES + len(self._body) + self.events.size

    def body(self) -> bytes:
        """Return the response as JSON, as far as it is made."""
        return self._body if self._writer is None else self._writer.body()

    async def cancel(self) -> None:
        """Cancel the response and wait for its end. Return at once if it has already ended."""
        if self.work is not None:
            self.work.cancel()
        await self.ended.wait()

    def conclude(self) -> Exception | None:
        """Finish the response: add its last events, and close its log. Return the error of its
        task, if any. REQUIRES: the task has ended, and conclude() was not called before."""
        writer, work = self._writer, self.work
        assert writer is not None and work is not None
        error = None if work.cancelled() else work.exception()
        if work.cancelled():
            self.events.add(writer.cancellation())
        elif isinstance(error, Exception):
            if not isinstance(error, ServerError | HttpRefusal):
                log.error("%s failed", writer.id, exc_info=error)
            self.events.add(writer.failure(error))
        if work.cancelled() or error is not None:
            writer.keep_without_answer()
        self.events.close()
        self._body, self._writer, self.work = writer.body(), None, None
        self.ended.set()
        return error if isinstance(error, Exception) else None

    def drop(self) -> None:
        """Drop the response's events and end the count of its memory. REQUIRES: the response has
        ended."""
        if self.dropping is not None:
            self.dropping.cancel()
        self.events.drop()
        self._memory.close()


class BackgroundResponses:
    def __init__(self, engine: Answering, model: ServedModel) -> None:
        self._engine = engine
        self._model = model
        self._kept: dict[str, BackgroundResponse] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def begin(self, request: web.Request, asked: AskedResponse) -> BackgroundResponse:
        """Start to make a response in the background. asked: the parsed request. Raises Busy and
        InvalidRequest if it needs too much memory."""
        with ExitStack() as stack:
            hold = stack.enter_context(self._model.hold(request))
            hold.resize(asked.kept_bytes + _RESPONSE_BYTES)
            memory = ExitStack()
            response = BackgroundResponse(http_request_context(request), asked.writer, memory)
            hold.grow(response.events.add(asked.writer.queued_opening()))
            memory.push(stack.pop_all())
        self._kept[response.id] = response
        loop = asyncio.get_running_loop()
        response.work = loop.create_task(self._answer(request, asked, response.events, hold))
        task = loop.create_task(self._live(request, response, response.work, hold))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return response

    def find(self, context: RequestContext, response_id: str) -> BackgroundResponse | None:
        """Return the caller's background response with this id; None if its events are already
        dropped, or there is none."""
        found = self._kept.get(response_id)
        is_callers = found is not None and found.owner == (context.caller.name, context.tenant)
        return found if is_callers else None

    async def delete(self, context: RequestContext, response_id: str) -> bool:
        """Cancel and drop the caller's background response with this id. Return True if it was kept
        here."""
        found = self.find(context, response_id)
        if found is None:
            return False
        await found.cancel()
        self._drop(found)
        return True

    def _drop(self, response: BackgroundResponse) -> None:
        """Remove the response from the table and drop its events. REQUIRES: the response has
        ended."""
        self._kept.pop(response.id, None)
        response.drop()

    async def _live(
        self,
        request: web.Request,
        response: BackgroundResponse,
        work: "asyncio.Task[None]",
        hold: Hold,
    ) -> None:
        """Wait until a response ends or the server stops, conclude it, and schedule the drop of its
        events. work: the task making the response. hold: memory count of the response."""
        loop = asyncio.get_running_loop()
        ending = request.app[OPEN_SOCKETS].ending
        server_ends = loop.create_task(ending.wait())
        try:
            with self._engine.calls.one():
                await asyncio.wait((work, server_ends), return_when=asyncio.FIRST_COMPLETED)
                await _cancelled(work)
                error = response.conclude()
                if error is not None:
                    count_failure(request, error)
            hold.resize(min(hold.size, response.size))
        except BaseException:
            work.cancel()
            self._drop(response)
            raise
        finally:
            server_ends.cancel()
        if ending.is_set():
            self._drop(response)
        elif self._kept.get(response.id) is response:
            response.dropping = loop.call_later(_FOLLOWED_SECONDS, self._drop, response)

    async def _answer(
        self, request: web.Request, asked: AskedResponse, events: EventLog, hold: Hold
    ) -> None:
        engine, submits = self._engine, [asked.submit]
        (choice,) = await asked_choices(
            *(engine, self._model, request, hold, submits), asked.options, [asked.writer]
        )
        context = http_request_context(request)
        async with engine.generate_all(submits, context, [None], [None]) as (parts,):
            async for part in parts:
                if asked.writer.is_queued:
                    hold.grow(events.add(asked.writer.leave_queue()))
                if isinstance(part, Finished):
                    # Not counted here, because the stored response counts it.
                    events.add(choice.ending(part))
                    return
                hold.grow(events.add(choice.written(part)))


async def _cancelled(work: "asyncio.Task[None]") -> None:
    """Cancel the task, and return once it has ended."""
    work.cancel()
    await asyncio.wait((work,))
