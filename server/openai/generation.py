"""What chats and completions over HTTP share: the model they serve, and a prompt becoming a reply.

Knows no messages and no JSON shapes. One event loop's thread.
"""

import hashlib
from dataclasses import dataclass
from functools import partial

from aiohttp import web
from tasuki.engine.messages import RequestId, Submit, Tokens
from tasuki.server.auth.request_context import Origin
from tasuki.server.auth.tenant import salt_of
from tasuki.server.engine_client import EngineClient
from tasuki.server.errors import InvalidField
from tasuki.server.http.auth import http_origin
from tasuki.server.http.errors import HttpRefusal
from tasuki.server.request_checks import check_length, read_request_id
from tasuki.server.text.stop_strings import StopStrings
from tasuki.server.text.text_answer import text_answer
from tasuki.server.text.text_codec import TextCodec

from .reply import ReplyShape, send_stream, send_whole
from .request_fields import RequestFields
from .sampling import AnswerOptions

REQUEST_ID_HEADER = "x-request-id"


@dataclass(frozen=True)
class ServedModel:
    """max_tokens: prompt and answer together, as far as the model and the arena allow."""

    name: str
    created: int
    max_tokens: int
    codec: TextCodec

    def check_name(self, fields: RequestFields) -> None:
        """A request may leave the model's name out, but not name another."""
        name = fields.text("model")
        if name is not None and name != self.name:
            raise HttpRefusal(
                404, "model_not_found", f"model {name!r} is not served here: use {self.name!r}"
            )


@dataclass(frozen=True)
class PromptRequest:
    """salt isolates tenants; marks are token counts at which a checkpoint is wanted. session: what
    operators may call the conversation."""

    request_id: RequestId
    tokens: Tokens
    marks: tuple[int, ...]
    salt: bytes
    session: str | None
    origin: Origin


def read_prompt_request(
    request: web.Request,
    fields: RequestFields,
    tokens: Tokens,
    marks: tuple[int, ...],
    model: ServedModel,
) -> PromptRequest:
    """What belongs to the request whatever its prompt came from. Affinity hints are checked and
    otherwise left to gateways: no answer depends on them."""
    if not len(tokens):
        raise InvalidField("prompt", "is empty: send at least one token")
    check_length("prompt", len(tokens), model.codec)
    key = fields.text("prompt_cache_key")
    named = fields.fields("metadata").text("x-session-id") or key
    # Clients put into it what they like: operators are shown that it is the same, not what it is.
    # Two tenants' conversations are two, whatever they are called.
    origin = http_origin(request)
    owned = salt_of(origin.tenant, b"")
    session = named and f"key {hashlib.sha256(owned + named.encode()).hexdigest()[:8]}"
    salt = salt_of(origin.tenant, (fields.text("cache_salt") or "").encode())
    request_id = read_request_id(request.headers.get(REQUEST_ID_HEADER, ""))
    return PromptRequest(request_id, tokens, marks, salt, session or None, origin)


async def answer(
    request: web.Request,
    engine: EngineClient,
    model: ServedModel,
    prompt: PromptRequest,
    options: AnswerOptions,
    shape: ReplyShape,
) -> web.StreamResponse:
    submit = Submit(
        request_id=prompt.request_id,
        prompt=prompt.tokens,
        sampling=options.sampling,
        salt=prompt.salt,
        marks=prompt.marks,
        session=prompt.session,
    )
    items = text_answer(
        engine.generate(submit, prompt.origin),
        model.codec.detokenizer(),
        StopStrings(options.stops),
        partial(engine.abort, prompt.request_id, prompt.origin.caller),
    )
    if options.stream:
        return await send_stream(request, items, shape, include_usage=options.include_usage)
    return await send_whole(request, items, shape)
