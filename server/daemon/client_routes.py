"""The HTTP APIs that a node's clients use, over one engine, as routes."""

import time

from aiohttp import web

from tasuki.server.anthropic.routes import message_routes
from tasuki.server.config import ServerConfig
from tasuki.server.engine_client import EngineClient
from tasuki.server.model_api.routes import model_routes
from tasuki.server.openai.generation import ServedModel
from tasuki.server.openai.routes import openai_routes
from tasuki.server.responses.routes import response_routes
from tasuki.server.responses.stored_responses import ResponseStore


def client_routes(
    engine: EngineClient, model: ServedModel, config: ServerConfig
) -> list[web.RouteDef]:
    store = ResponseStore(
        time.monotonic,
        config.response_store_mib * 2**20,
        config.responses_per_key,
        config.response_seconds,
    )
    return [
        *openai_routes(engine, model),
        *message_routes(engine, model),
        *response_routes(engine, model, store),
        *model_routes(model),
    ]
