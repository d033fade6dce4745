"""POST /v1/chat/completions: what a chat asks, and the shape of its reply."""

from aiohttp import web

from tasuki.engine.messages import Submit
from tasuki.server.errors import InvalidField
from tasuki.server.text.chat_renderer import ChatRenderer
from tasuki.server.text.chat_template import RenderedPrompt
from tasuki.server.text.parsing.answer_parser import AnswerParser
from tasuki.server.text.text_codec import TextCodec

from .chat_reply import ChatReply
from .generation import ServedModel, prompt_salt, read_submit
from .messages import parallel_calls, read_chat_messages, read_tools
from .reply import ReplyHead
from .request_fields import RequestFields
from .sampling import AnswerOptions, read_options, read_top_logprobs
from .template_variables import read_template_variables


def read_chat(
    model: ServedModel, request: web.Request, fields: RequestFields
) -> tuple[Submit, AnswerOptions, ChatReply]:
    """On any thread."""
    submit, options, parser = read_chat_request(model, request, fields)
    shape = ChatReply(
        ReplyHead(f"chatcmpl-{submit.request_id}", model.named(fields.text("model"))),
        parser,
        model.codec.tokenizer,
        with_logprobs=fields.flag("logprobs"),
    )
    return submit, options, shape


def read_chat_request(
    model: ServedModel, request: web.Request, fields: RequestFields
) -> tuple[Submit, AnswerOptions, AnswerParser]:
    """A chat whatever its reply's shape is. fields: as of /v1/chat/completions. The parser takes
    the answer apart. On any thread."""
    salt = prompt_salt(request, fields)
    rendered = render_chat(fields, model.codec, open_answer=opens_answer(fields), salt=salt)
    # Without a limit an answer may fill what the prompt leaves, as elsewhere.
    left = max(1, model.max_tokens - len(rendered.tokens))
    top = read_top_logprobs(fields, "top_logprobs")
    if top and not fields.flag("logprobs"):
        raise InvalidField("top_logprobs", "needs logprobs: true")
    options = read_options(fields, model.codec, left, model.sampling_defaults, top)
    submit = read_submit(request, fields, rendered, options, model)
    parser = AnswerParser(
        rendered.thinking, read_tools(fields), parallel_calls=parallel_calls(fields)
    )
    return submit, options, parser


def opens_answer(fields: RequestFields) -> bool:
    """Whether the prompt ends with what the template begins an answer by."""
    return fields.get("add_generation_prompt") is None or fields.flag("add_generation_prompt")


def render_chat(
    fields: RequestFields, codec: TextCodec, *, open_answer: bool, salt: bytes
) -> RenderedPrompt:
    """`messages` and `tools` through the checkpoint's template. salt: as of the prompt."""
    return ChatRenderer(codec).conversation(
        read_chat_messages(fields),
        open_answer=open_answer,
        salt=salt,
        tools=read_tools(fields),
        variables=read_template_variables(fields),
    )
