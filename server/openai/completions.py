"""POST /v1/completions. Lives on the event loop's thread; bodies are read on the codec's."""

from functools import partial

from aiohttp import web
from tasuki.engine.messages import Submit, Tokens
from tasuki.server.engine_client import EngineClient
from tasuki.server.errors import InvalidField
from tasuki.server.request_checks import check_vocabulary, to_tokens
from tasuki.server.text.chat_renderer import ChatRenderer
from tasuki.server.text.text_codec import TextCodec

from .completion_reply import CompletionReply
from .generation import ServedModel, answer, read_submit
from .reply import ReplyHead
from .request_fields import RequestFields
from .sampling import AnswerOptions, check_alternatives, read_options

# OpenAI's own for this endpoint.
_DEFAULT_NEW_TOKENS = 16


class CompletionHandler:
    def __init__(self, engine: EngineClient, model: ServedModel) -> None:
        self._engine = engine
        self._model = model

    async def handle(self, request: web.Request) -> web.StreamResponse:
        asked = await self._model.read(request, partial(self._read, request))
        return await answer(request, self._engine, self._model, *asked)

    def _read(
        self, request: web.Request, fields: RequestFields
    ) -> tuple[Submit, AnswerOptions, CompletionReply]:
        """On any thread."""
        model = self._model
        tokens = read_prompt(fields, model.codec)
        options = read_options(fields, model.codec, _DEFAULT_NEW_TOKENS)
        top = fields.integer("logprobs")
        check_alternatives("logprobs", top or 0, options)
        submit = read_submit(request, fields, tokens, (), options, model)
        head = ReplyHead(f"cmpl-{submit.request_id}", model.name)
        return submit, options, CompletionReply(head, model.codec.tokenizer, top)


def read_prompt(fields: RequestFields, codec: TextCodec) -> Tokens:
    """int32 [T]: a string, token ids, or a list of one such."""
    prompt = fields.get("prompt")
    if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], str | list):
        (prompt,) = prompt
    if isinstance(prompt, str):
        return ChatRenderer(codec).text("prompt", prompt)
    if not isinstance(prompt, list) or any(isinstance(item, str | list) for item in prompt):
        raise InvalidField("prompt", "must be one string or one list of token ids")
    tokens = to_tokens("prompt", prompt)
    check_vocabulary("prompt", tokens, codec.vocab_size)
    return tokens
