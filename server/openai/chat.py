"""POST /v1/chat/completions: what a chat asks, and the shape of its reply."""

from aiohttp import web

from tasuki.engine.messages import Submit
from tasuki.server.text.chat_renderer import ChatRenderer
from tasuki.server.text.chat_template import RenderedPrompt
from tasuki.server.text.text_codec import TextCodec
from tasuki.server.text.tool_call_scanner import ToolCallScanner

from .chat_reply import ChatReply
from .generation import ServedModel, prompt_salt, read_submit
from .messages import read_chat_messages, read_tools
from .reply import ReplyHead
from .request_fields import RequestFields
from .sampling import AnswerOptions, check_alternatives, read_options


def read_chat(
    model: ServedModel, request: web.Request, fields: RequestFields
) -> tuple[Submit, AnswerOptions, ChatReply]:
    """On any thread."""
    salt = prompt_salt(request, fields)
    rendered = render_chat(fields, model.codec, open_answer=opens_answer(fields), salt=salt)
    tokens = rendered.tokens
    # Without a limit an answer may fill what the prompt leaves, as elsewhere.
    left = max(1, model.max_tokens - len(tokens))
    options = read_options(fields, model.codec, left, model.sampling_defaults)
    top = fields.integer("top_logprobs") or 0
    check_alternatives("top_logprobs", top, options)
    submit = read_submit(request, fields, tokens, rendered.marks, options, model)
    shape = ChatReply(
        ReplyHead(f"chatcmpl-{submit.request_id}", model.name),
        ToolCallScanner(read_tools(fields)),
        model.codec.tokenizer,
        top if fields.flag("logprobs") else None,
    )
    return submit, options, shape


def opens_answer(fields: RequestFields) -> bool:
    """Whether the prompt ends with what the template begins an answer by."""
    return fields.get("add_generation_prompt") is None or fields.flag("add_generation_prompt")


def render_chat(
    fields: RequestFields, codec: TextCodec, *, open_answer: bool, salt: bytes
) -> RenderedPrompt:
    """`messages` and `tools` through the checkpoint's template. salt: as of the prompt."""
    return ChatRenderer(codec).conversation(
        read_chat_messages(fields), open_answer=open_answer, salt=salt, tools=read_tools(fields)
    )
