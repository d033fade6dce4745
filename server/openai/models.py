"""GET /v1/models and POST /tokenize: the served model, and its tokens of a text."""

import json
from functools import partial
from typing import Any

from aiohttp import web

from tasuki.engine.messages import Tokens
from tasuki.server.http.errors import HttpRefusal
from tasuki.server.text.text_codec import TextCodec

from .chat import opens_answer, render_chat
from .completions import read_prompt
from .generation import ServedModel, prompt_salt
from .request_fields import RequestFields


class ModelHandlers:
    def __init__(self, model: ServedModel) -> None:
        self._model = model

    async def list(self, request: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [self._card()]})

    async def one(self, request: web.Request) -> web.Response:
        name = request.match_info["name"]
        if name != self._model.name:
            raise HttpRefusal(404, "model_not_found", f"model {name!r} is not served here")
        return web.json_response(self._card())

    async def tokenize(self, request: web.Request) -> web.Response:
        """`prompt` as completions take it, or `messages` as chats do."""
        reply = await self._model.read(request, partial(_tokenized, self._model, request))
        return web.Response(body=reply, content_type="application/json", charset="utf-8")

    def _card(self) -> dict[str, Any]:
        return {
            "id": self._model.name,
            "object": "model",
            "created": self._model.created,
            "owned_by": "tasuki",
            "max_model_len": self._model.max_tokens,
        }


def _tokenized(model: ServedModel, request: web.Request, fields: RequestFields) -> bytes:
    """On any thread: half a million token ids take longer to write than the loop may be held."""
    tokens = _tokens(model.codec, request, fields).tolist()
    reply = {"count": len(tokens), "max_model_len": model.max_tokens, "tokens": tokens}
    return json.dumps(reply).encode()


def _tokens(codec: TextCodec, request: web.Request, fields: RequestFields) -> Tokens:
    if fields.get("messages") is None:
        return read_prompt(fields, codec)
    salt = prompt_salt(request, fields)
    return render_chat(fields, codec, open_answer=opens_answer(fields), salt=salt).tokens
