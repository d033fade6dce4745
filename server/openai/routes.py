"""The OpenAI-compatible HTTP routes over one engine: chats, completions, models, and tokens of a
text.

ModelHandlers: GET /v1/models, the names of the served model.

TokenHandlers: POST /tokenize and POST /detokenize, as in vLLM, and GET /tokenizer_info for clients
with their own token counting or rendering.
"""

import json
import time
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from aiohttp import web

from tasuki.engine.messages import Tokens
from tasuki.model.grammar.vocabulary import name_of_bytes
from tasuki.server.auth.limits import HeldBytes
from tasuki.server.config import ServerConfig
from tasuki.server.engine_client import Answering
from tasuki.server.errors import InvalidField, PromptTooLong
from tasuki.server.http.reply import send_json
from tasuki.server.pictures.blind_pictures import BlindPictures
from tasuki.server.pictures.node_pictures import Pictures
from tasuki.server.request_checks import check_vocabulary, to_tokens
from tasuki.server.text.rendering.chat_template import GENERAL_CLASS, SPECIAL_NAMES
from tasuki.server.text.stop_strings import StopPlace
from tasuki.server.text.text_codec import TextCodec
from tasuki.server.text.tokenizer import Tokenizer

from .chat import opens_answer, read_chat, render_chat
from .completions import read_completion, read_prompt
from .generation import ServedModel, answering, prompt_salt
from .request_fields import RequestFields
from .sampling import SamplingDefaults


class ModelHandlers:
    def __init__(self, model: ServedModel) -> None:
        self._model = model

    async def list(self, request: web.Request) -> web.Response:
        """Answer GET /v1/models with one model card for each name of the model. `has_more` and the
        first and last ids are for the paging of Anthropic's clients."""
        cards = [self._card(name) for name in self._model.names]
        return web.json_response(
            {
                "object": "list",
                "data": cards,
                "has_more": False,
                "first_id": cards[0]["id"],
                "last_id": cards[-1]["id"],
            }
        )

    async def one(self, request: web.Request) -> web.Response:
        return web.json_response(self._card(self._model.named(request.match_info["name"])))

    def _card(self, name: str) -> dict[str, Any]:
        """Return a model card as JSON: OpenAI's fields, vLLM's, the abilities, and three for
        Anthropic's clients."""
        model = self._model
        return {
            "id": name,
            "object": "model",
            "created": model.created,
            "owned_by": "tasuki",
            "root": model.name,
            "parent": None,
            "max_model_len": model.max_tokens,
            **_abilities(model),
            "type": "model",
            "display_name": name,
            "created_at": datetime.fromtimestamp(model.created, UTC).isoformat(),
        }


def _abilities(model: ServedModel) -> dict[str, Any]:
    """Return the fields for what the model takes, as at OpenRouter and at Mistral."""
    takes = ["text", "image"] if model.sees else ["text"]
    return {
        "architecture": {"input_modalities": takes, "output_modalities": ["text"]},
        "capabilities": {"vision": model.sees},
    }


class TokenHandlers:
    def __init__(self, model: ServedModel) -> None:
        self._model = model

    async def tokenize(self, request: web.Request) -> web.StreamResponse:
        """Answer POST /tokenize with the token ids of `messages` (as in chats), or without them of
        `prompt` (as in completions)."""
        return await self._answer(request, partial(tokenized, self._model, request))

    async def detokenize(self, request: web.Request) -> web.StreamResponse:
        """Answer POST /detokenize with the text of `tokens`, a list of token ids. Special tokens
        are written by name."""
        return await self._answer(request, partial(detokenized, self._model.codec))

    async def info(self, request: web.Request) -> web.Response:
        """Answer GET /tokenizer_info with the checkpoint's special tokens and its chat template.
        Raises InvalidRequest without a tokenizer."""
        codec = self._model.codec
        codec.require_tokenizer()
        template = codec.template
        names = {} if template is None else template.variables
        return web.json_response(
            {
                **{name: names.get(name) for name in SPECIAL_NAMES},
                "chat_template": None if template is None else template.source,
                "model_max_length": codec.max_tokens,
                "tokenizer_class": GENERAL_CLASS if template is None else template.tokenizer_class,
            }
        )

    async def _answer(self, request: web.Request, read: Any) -> web.StreamResponse:
        with self._model.hold(request) as hold:
            reply = await self._model.read(request, hold, read)
            hold.resize(len(reply))
            return await send_json(request, reply)


def tokenized(model: ServedModel, request: web.Request, fields: RequestFields) -> bytes:
    """Return the JSON body of the reply to POST /tokenize, with token names for
    `return_token_strs`. On any thread but the event loop's: writing half a million token ids would
    block the loop for too long."""
    tokens = _tokens(model, request, fields).tolist()
    named = _names_of(tokens, model.codec) if fields.flag("return_token_strs") else None
    reply = {"count": len(tokens), "max_model_len": model.max_tokens, "tokens": tokens}
    return json.dumps({**reply, "token_strs": named}).encode()


def _tokens(model: ServedModel, request: web.Request, fields: RequestFields) -> Tokens:
    if fields.get("messages") is None:
        return read_prompt(fields, model.codec)
    salt = prompt_salt(request, fields)
    return render_chat(fields, model, open_answer=opens_answer(fields), salt=salt).tokens


def detokenized(codec: TextCodec, fields: RequestFields) -> bytes:
    """Return the JSON body of the reply to POST /detokenize. On any thread. Raises InvalidRequest,
    PromptTooLong."""
    tokenizer = codec.require_tokenizer()
    if fields.get("tokens") is None:
        raise InvalidField("tokens", "is missing: send a list of token ids")
    ids = fields.items("tokens")
    if len(ids) > codec.max_tokens:
        raise PromptTooLong(
            f"tokens has {len(ids)}, and the model's context is {codec.max_tokens}: send less",
            "tokens",
        )
    tokens = to_tokens("tokens", ids)
    check_vocabulary("tokens", tokens, codec.vocab_size)
    names = _names(tokenizer)
    content = b"".join(
        names.get(token) or tokenizer.token_bytes(token) for token in tokens.tolist()
    )
    return json.dumps({"prompt": content.decode(errors="replace")}).encode()


def _names_of(tokens: list[int], codec: TextCodec) -> list[str]:
    """Return the name of each token in the vocabulary's own spelling, as in vLLM."""
    tokenizer = codec.require_tokenizer()
    special = tokenizer.special_names
    return [special.get(token) or name_of_bytes(tokenizer.token_bytes(token)) for token in tokens]


def _names(tokenizer: Tokenizer) -> dict[int, bytes]:
    """Return the names of special tokens as bytes, by token id. Detokenizing an answer leaves these
    tokens out."""
    return {token: name.encode() for token, name in tokenizer.special_names.items()}


def model_routes(model: ServedModel) -> list[web.RouteDef]:
    models, tokens = ModelHandlers(model), TokenHandlers(model)
    return [
        web.get("/v1/models", models.list),
        web.get("/v1/models/{name:.+}", models.one),
        web.post("/tokenize", tokens.tokenize),
        web.post("/detokenize", tokens.detokenize),
        web.get("/tokenizer_info", tokens.info),
    ]


def openai_routes(engine: Answering, model: ServedModel) -> list[web.RouteDef]:
    return [
        web.post("/v1/chat/completions", answering(engine, model, read_chat)),
        web.post("/v1/completions", answering(engine, model, read_completion)),
    ]


def served_model(
    folder: str,
    config: ServerConfig,
    max_tokens: int,
    codec: TextCodec,
    pictures: Pictures | None = None,
) -> ServedModel:
    """Return the model served by the HTTP routes. folder: checkpoint folder; also the source of the
    name if the config has none. max_tokens: limit for prompt and answer together. pictures: reads
    those of chats; None: they are refused. Raises GenerationConfigError."""
    name, *aliases = config.model_names(Path(folder))
    if pictures is None:
        pictures = BlindPictures.of(name, Path(folder))
    return ServedModel(
        name=name,
        created=int(time.time()),
        max_tokens=max_tokens,
        codec=codec,
        sampling_defaults=SamplingDefaults.load(config.generation_config, Path(folder)),
        stop_place=StopPlace(config.stop_strings),
        hides_unasked_thinking=config.messages_thinking == "asked",
        aliases=tuple(aliases),
        whole_calls=config.whole_calls,
        strict_fields=config.strict_fields,
        held=HeldBytes.for_messages(config.message_bytes),
        pictures=pictures,
    )
