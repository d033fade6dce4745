"""The HTTP APIs that a node's clients use, over one engine, as routes."""

from aiohttp import web

from .anthropic.routes import message_routes
from .engine_client import EngineClient
from .model_api.routes import model_routes
from .openai.generation import ServedModel
from .openai.routes import openai_routes


def client_routes(engine: EngineClient, model: ServedModel) -> list[web.RouteDef]:
    return [
        *openai_routes(engine, model),
        *message_routes(engine, model),
        *model_routes(model),
    ]
