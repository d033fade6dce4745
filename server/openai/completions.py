"""POST /v1/completions: what a completion asks, and the shape of its reply."""

from aiohttp import web

from tasuki.engine.messages import Submit, Tokens
from tasuki.server.errors import InvalidField
from tasuki.server.request_checks import check_vocabulary, to_tokens
from tasuki.server.text.chat_renderer import ChatRenderer
from tasuki.server.text.chat_template import RenderedPrompt
from tasuki.server.text.text_codec import TextCodec

from .completion_reply import CompletionReply
from .generation import ServedModel, read_submit
from .reply import ReplyHead
from .request_fields import RequestFields
from .sampling import AnswerOptions, read_options, read_top_logprobs

# OpenAI's own for this endpoint.
_DEFAULT_NEW_TOKENS = 16


def read_completion(
    model: ServedModel, request: web.Request, fields: RequestFields
) -> tuple[Submit, AnswerOptions, CompletionReply]:
    """On any thread."""
    tokens = read_prompt(fields, model.codec)
    top = read_top_logprobs(fields, "logprobs")
    options = read_options(fields, model.codec, _DEFAULT_NEW_TOKENS, model.sampling_defaults, top)
    submit = read_submit(request, fields, RenderedPrompt(tokens), options, model)
    head = ReplyHead(f"cmpl-{submit.request_id}", model.named(fields.text("model")))
    return (
        submit,
        options,
        CompletionReply(
            head, model.codec.tokenizer, with_logprobs=fields.get("logprobs") is not None
        ),
    )


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
