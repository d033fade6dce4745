"""OpenAI's Responses API over one engine, as routes."""

from functools import partial

from aiohttp import web

from tasuki.server.engine_client import Answering
from tasuki.server.http.auth import http_caller, http_request_context
from tasuki.server.http.errors import HttpRefusal
from tasuki.server.http.event_stream import EventStream
from tasuki.server.http.json_reply import send_json
from tasuki.server.openai.generation import ServedModel, answer_with

from .compaction.compact_request import read_compact_request
from .listed_items import AskedPage, listed_items
from .response_request import TooLongResponse, count_response_tokens, read_response_request
from .stored_responses import Responses, ResponseStore
from .websocket.response_socket import ResponseSockets

STORED_PATH = "/v1/responses/{name}"
STORED_ROUTE = r"/v1/responses/{name:(?!(?:compact|input_tokens)$)[^/]+}"
"""What OpenAI has at such a path is no response's id."""
INPUT_ITEMS_PATH = f"{STORED_PATH}/input_items"


def response_routes(
    engine: Answering, model: ServedModel, store: ResponseStore
) -> list[web.RouteDef]:
    stored = StoredHandlers(store, model)
    return [
        *answering_routes(engine, model, store),
        web.get(STORED_ROUTE, stored.retrieve),
        web.delete(STORED_ROUTE, stored.delete),
        web.get(INPUT_ITEMS_PATH, stored.input_items),
    ]


def answering_routes(engine: Answering, model: ServedModel, store: Responses) -> list[web.RouteDef]:
    handlers = ResponseHandlers(engine, model, store)
    return [
        web.post("/v1/responses", handlers.create),
        web.get("/v1/responses", ResponseSockets(engine, model, store).open),
        web.post("/v1/responses/compact", handlers.compact),
        web.post("/v1/responses/input_tokens", handlers.count_tokens),
    ]


class ResponseHandlers:
    def __init__(self, engine: Answering, model: ServedModel, store: Responses) -> None:
        self._engine = engine
        self._model = model
        self._store = store

    async def create(self, request: web.Request) -> web.StreamResponse:
        model = self._model
        with model.hold(request) as hold:
            read = partial(read_response_request, model, self._store, request)
            asked = await model.read(request, hold, read)
            if isinstance(asked, TooLongResponse):
                hold.resize(0)
                return await _told_in_a_stream(request, asked)
            hold.resize(asked.kept_bytes)
            return await answer_with(
                *(self._engine, model, request, hold), asked.submit, asked.options, asked.writer
            )

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
    def __init__(self, store: ResponseStore, model: ServedModel) -> None:
        self._store = store
        self._held = model.held
        """Counts what waits for clients that read slowly."""
        self._work = model.codec.work

    async def retrieve(self, request: web.Request) -> web.StreamResponse:
        name = request.match_info["name"]
        if request.query.get("stream", "false").lower() not in ("false", "0"):
            raise HttpRefusal(400, "invalid", "stream: a response that has ended is not streamed")
        found = self._store.get(http_request_context(request), name)
        if found is None:
            raise _not_found(name)
        with self._held.hold(http_caller(request), len(found.body)):
            return await send_json(request, found.body)

    async def input_items(self, request: web.Request) -> web.StreamResponse:
        name, page = request.match_info["name"], AskedPage.of(request.query)
        context = http_request_context(request)
        found = self._store.get(context, name)
        if found is None:
            raise _not_found(name)
        size = len(found.turn.conversation)
        with self._held.hold(http_caller(request), size) as hold:
            body = await self._work.run(context.line, partial(listed_items, found, page), size)
            hold.resize(len(body))
            return await send_json(request, body)

    async def delete(self, request: web.Request) -> web.Response:
        name = request.match_info["name"]
        if not self._store.delete(http_request_context(request), name):
            raise _not_found(name)
        return web.json_response({"id": name, "object": "response", "deleted": True})


def _not_found(name: str) -> HttpRefusal:
    return HttpRefusal(404, "response_not_found", f"response {name!r:.100} is not stored here")
