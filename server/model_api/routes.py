"""The served model's names and tokens, as routes."""

from aiohttp import web

from tasuki.server.openai.generation import ServedModel

from .models import ModelHandlers
from .tokens import TokenHandlers


def model_routes(model: ServedModel) -> list[web.RouteDef]:
    models, tokens = ModelHandlers(model), TokenHandlers(model)
    return [
        web.get("/v1/models", models.list),
        web.get("/v1/models/{name:.+}", models.one),
        web.post("/tokenize", tokens.tokenize),
        web.post("/detokenize", tokens.detokenize),
        web.get("/tokenizer_info", tokens.info),
    ]
