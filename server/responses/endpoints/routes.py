"""HTTP routes of OpenAI's Responses API over one engine: new and stored responses."""

from functools import partial

from aiohttp import web

from tasuki.server.engine_client import Answering
from tasuki.server.errors import InvalidField
from tasuki.server.http.access import http_caller, http_request_context
from tasuki.server.http.errors import HttpRefusal
from tasuki.server.http.reply import EventStream, send_json
from tasuki.server.openai.generation import ServedModel, answer_with
from tasuki.server.responses.conversations import conversation_routes
from tasuki.server.responses.listed_items import AskedPage, listed_items
from tasuki.server.responses.listed_pictures import shows_urls
from tasuki.server.responses.response_request import (
    AskedResponse,
    TooLongResponse,
    count_response_tokens,
    read_response_request,
)
from tasuki.server.responses.stored_responses import Responses, ResponseStore

from .background import (
    BackgroundResponses,
    asks_for_stream,
    first_place,
    follow,
    is_of_background,
    not_in_background,
)
from .compaction import read_compact_request
from .response_socket import ResponseSockets

STORED_PATH = "/v1/responses/{name}"
STORED_ROUTE = r"/v1/responses/{name:(?!(?:compact|input_tokens)$)[^/]+}"
"""Route of a stored response, by id. The pattern excludes OpenAI's fixed paths `compact` and
`input_tokens`."""
CANCEL_PATH = f"{STORED_PATH}/cancel"
INPUT_ITEMS_PATH = f"{STORED_PATH}/input_items"


def response_routes(
    engine: Answering, model: ServedModel, store: ResponseStore
) -> list[web.RouteDef]:
    background = BackgroundResponses(engine, model)
    stored = StoredHandlers(store, model, background)
    return [
        *answering_routes(engine, model, store, background),
        *conversation_routes(model, store),
        web.post(CANCEL_PATH, stored.cancel),
        web.get(STORED_ROUTE, stored.retrieve),
        web.delete(STORED_ROUTE, stored.delete),
        web.get(INPUT_ITEMS_PATH, stored.input_items),
    ]


def answering_routes(
    engine: Answering,
    model: ServedModel,
    store: Responses,
    background: BackgroundResponses | None = None,
) -> list[web.RouteDef]:
    """Return the routes to make new responses. background: owner of background responses; None if
    another process stores the responses."""
    handlers = ResponseHandlers(engine, model, store, background)
    return [
        web.post("/v1/responses", handlers.create),
        web.get("/v1/responses", ResponseSockets(engine, model, store).open),
        web.post("/v1/responses/compact", handlers.compact),
        web.post("/v1/responses/input_tokens", handlers.count_tokens),
    ]


class ResponseHandlers:
    def __init__(
        self,
        engine: Answering,
        model: ServedModel,
        store: Responses,
        background: BackgroundResponses | None,
    ) -> None:
        self._engine = engine
        self._model = model
        self._store = store
        self._background = background

    async def create(self, request: web.Request) -> web.StreamResponse:
        model = self._model
        with model.hold(request) as hold:
            read = partial(read_response_request, model, self._store, request)
            asked = await model.read(request, hold, read)
            if isinstance(asked, TooLongResponse):
                hold.resize(0)
                return await _told_in_a_stream(request, asked)
            if asked.in_background:
                hold.resize(0)
                return await self._begin(request, asked)
            hold.resize(asked.kept_bytes)
            return await answer_with(
                *(self._engine, model, request, hold), asked.submit, asked.options, asked.writer
            )

    async def _begin(self, request: web.Request, asked: AskedResponse) -> web.StreamResponse:
        if self._background is None:
            raise InvalidField(
                "background", "needs a node without --front-workers: leave it out, or false"
            )
        response = self._background.begin(request, asked)
        if asked.options.stream:
            return await follow(request, response.events, 0)
        return await send_json(request, response.body())

    async def compact(self, request: web.Request) -> web.StreamResponse:
        model = self._model
        with model.hold(request) as hold:
            read = partial(read_compact_request, model, self._store, request)
            asked = await model.read(request, hold, read)
            hold.resize(asked.kept_bytes)
            return await answer_with(
                *(self._engine, model, request, hold), asked.submit, asked.options, asked.writer
            )

    async def count_tokens(self, request: web.Request) -> web.Response:
        model = self._model
        with model.hold(request) as hold:
            read = partial(count_response_tokens, model, self._store, request)
            count = await model.read(request, hold, read)
        return web.json_response({"object": "response.input_tokens", "input_tokens": count})


async def _told_in_a_stream(request: web.Request, asked: TooLongResponse) -> web.StreamResponse:
    stream = EventStream(request, asked.writer.keep_alive)
    await stream.prepare()
    stream.keep_no_longer()
    await stream.end(asked.writer.opening() + asked.writer.failure(asked.error))
    return stream.response


class StoredHandlers:
    def __init__(
        self, store: ResponseStore, model: ServedModel, background: BackgroundResponses
    ) -> None:
        self._store = store
        self._background = background
        self._held = model.held
        """Bytes of memory held for slowly reading clients."""
        self._work = model.codec.work

    async def retrieve(self, request: web.Request) -> web.StreamResponse:
        name, is_stream = request.match_info["name"], asks_for_stream(request)
        context = http_request_context(request)
        running = self._background.find(context, name)
        if running is not None and is_stream:
            return await follow(request, running.events, first_place(request))
        if running is not None:
            return await self._send(request, running.body())
        found = self._store.get(context, name)
        if found is None:
            raise _not_found(name)
        if is_stream:
            raise HttpRefusal(
                400,
                "invalid",
                "stream: events are kept of responses with background: true, five minutes behind "
                "their end",
            )
        return await self._send(request, found.body)

    async def cancel(self, request: web.Request) -> web.StreamResponse:
        name, context = request.match_info["name"], http_request_context(request)
        running = self._background.find(context, name)
        if running is not None:
            await running.cancel()
            return await self._send(request, running.body())
        found = self._store.get(context, name)
        if found is None:
            raise _not_found(name)
        if not is_of_background(found.body):
            raise not_in_background(name)
        return await self._send(request, found.body)

    async def _send(self, request: web.Request, body: bytes) -> web.StreamResponse:
        """Send a JSON body. Its bytes count as held memory until the client has read it."""
        with self._held.hold(http_caller(request), len(body)):
            return await send_json(request, body)

    async def input_items(self, request: web.Request) -> web.StreamResponse:
        name, page = request.match_info["name"], AskedPage.of(request.query)
        context = http_request_context(request)
        found = self._store.get(context, name)
        if found is None:
            raise _not_found(name)
        urls = shows_urls(request.query)
        size = len(found.turn.conversation) + (found.picture_bytes if urls else 0)
        with self._held.hold(http_caller(request), size) as hold:
            listed = partial(listed_items, found, page, urls=urls)
            body = await self._work.run(context.line, listed, size)
            hold.resize(len(body))
            return await send_json(request, body)

    async def delete(self, request: web.Request) -> web.Response:
        name = request.match_info["name"]
        context = http_request_context(request)
        was_running = await self._background.delete(context, name)
        is_stored = self._store.get(context, name) is not None
        if not (is_stored and self._store.delete(context, name)) and not was_running:
            raise _not_found(name)
        return web.json_response({"id": name, "object": "response", "deleted": True})


def _not_found(name: str) -> HttpRefusal:
    return HttpRefusal(404, "response_not_found", f"response {name!r:.100} is not stored here")
