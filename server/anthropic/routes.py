"""Anthropic's Messages API over one engine, as routes."""

import re
from functools import partial

from aiohttp import web

from tasuki.server.engine_client import Answering
from tasuki.server.http.errors import HttpRefusal
from tasuki.server.openai.generation import ServedModel, answer_with

from .message_request import count_message_tokens, read_message_request

VERSION_HEADER = "anthropic-version"
_FIRST_VERSION = "2023-06-01"
"""The first with named events. Later ones took fields away, which are still taken here, and added
some, which have names of their own."""
_DATE = re.compile(r"\d{4}-\d{2}-\d{2}")


def message_routes(engine: Answering, model: ServedModel) -> list[web.RouteDef]:
    handlers = MessageHandlers(engine, model)
    return [
        web.post("/v1/messages", handlers.create),
        web.post("/v1/messages/count_tokens", handlers.count_tokens),
    ]


class MessageHandlers:
    def __init__(self, engine: Answering, model: ServedModel) -> None:
        self._engine = engine
        self._model = model

    async def create(self, request: web.Request) -> web.StreamResponse:
        _check_version(request)
        model = self._model
        with model.hold(request) as hold:
            read = partial(read_message_request, model, request)
            asked = await model.read(request, hold, read)
            hold.resize(asked.kept_bytes)
            return await answer_with(
                *(self._engine, model, request, hold), asked.submit, asked.options, asked.writer
            )

    async def count_tokens(self, request: web.Request) -> web.Response:
        _check_version(request)
        model = self._model
        with model.hold(request) as hold:
            read = partial(count_message_tokens, model, request)
            count = await model.read(request, hold, read)
        return web.json_response({"input_tokens": count})


def _check_version(request: web.Request) -> None:
    """Betas change nothing by being named: what they add has fields."""
    version = request.headers.get(VERSION_HEADER, _FIRST_VERSION)
    if not _DATE.fullmatch(version) or version < _FIRST_VERSION:
        raise HttpRefusal(
            400,
            "unknown_version",
            f"{VERSION_HEADER} {version:.40}: send {_FIRST_VERSION} or later",
        )
