"""The OpenAI-compatible HTTP API over one engine, as routes."""

import time
from pathlib import Path

from aiohttp import web

from ..engine.engine import Engine
from .config import FrontConfig
from .engine_client import EngineClient
from .http_chat import ChatHandler
from .http_completions import CompletionHandler
from .http_generation import ServedModel
from .http_models import ModelHandlers
from .text_codec import TextCodec


def openai_routes(engine: EngineClient, model: ServedModel) -> list[web.RouteDef]:
    models = ModelHandlers(model)
    return [
        web.post("/v1/chat/completions", ChatHandler(engine, model).handle),
        web.post("/v1/completions", CompletionHandler(engine, model).handle),
        web.get("/v1/models", models.list),
        web.get("/v1/models/{name:.+}", models.one),
        web.post("/tokenize", models.tokenize),
    ]


def served_model(folder: str, config: FrontConfig, engine: Engine, codec: TextCodec) -> ServedModel:
    """folder: the checkpoint's; it names the model where the config does not."""
    return ServedModel(
        name=config.served_model_name or Path(folder).resolve().name,
        created=int(time.time()),
        max_tokens=engine.max_request_tokens,
        codec=codec,
    )
