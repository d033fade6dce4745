"""POST /v1/chat/completions. Lives on the event loop's thread."""

import numpy as np
from aiohttp import web

from .chat_message import ChatTemplateError
from .chat_reply import ChatReply
from .chat_template import RenderedPrompt
from .engine_client import EngineClient
from .errors import InvalidRequest
from .http_generation import ServedModel, answer, read_prompt_request
from .openai_messages import read_chat_messages, read_tools
from .openai_reply import ReplyHead
from .openai_sampling import check_alternatives, read_options
from .request_fields import RequestFields, read_fields
from .text_codec import TextCodec
from .tool_call_scanner import ToolCallScanner


class ChatHandler:
    def __init__(self, engine: EngineClient, model: ServedModel) -> None:
        self._engine = engine
        self._model = model

    async def handle(self, request: web.Request) -> web.StreamResponse:
        fields = await read_fields(request)
        model = self._model
        model.check_name(fields)
        rendered = render_chat(fields, model.codec, open_answer=True)
        tokens = np.array(rendered.token_ids, dtype=np.int32)
        prompt = read_prompt_request(request, fields, tokens, rendered.marks, model)
        # Without a limit an answer may fill what the prompt leaves, as elsewhere.
        options = read_options(fields, model.codec, max(1, model.max_tokens - len(tokens)))
        top = fields.integer("top_logprobs") or 0
        check_alternatives("top_logprobs", top, options)
        shape = ChatReply(
            ReplyHead(f"chatcmpl-{prompt.request_id}", model.name),
            ToolCallScanner(read_tools(fields)),
            model.codec.tokenizer,
            top if fields.flag("logprobs") else None,
        )
        return await answer(request, self._engine, model, prompt, options, shape)


def render_chat(fields: RequestFields, codec: TextCodec, *, open_answer: bool) -> RenderedPrompt:
    """`messages` and `tools` through the checkpoint's template."""
    messages, tools = read_chat_messages(fields), read_tools(fields)
    try:
        return codec.require_template().prompt(messages, open_answer=open_answer, tools=tools)
    except ChatTemplateError as error:
        raise InvalidRequest(str(error)) from error
