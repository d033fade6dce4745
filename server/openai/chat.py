"""POST /v1/chat/completions: what a chat asks, and the shape of its reply."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
from aiohttp import web

from tasuki.engine.messages import Submit, Tokens
from tasuki.server.errors import InvalidField
from tasuki.server.fields.chats import OF_CHATS
from tasuki.server.replies.kept_bytes import ids_bytes, score_bytes, submit_bytes, value_bytes
from tasuki.server.replies.scored_prompt import ScoredPrompt, check_scores
from tasuki.server.request_checks import check_length, checked_prediction
from tasuki.server.text.chat_message import ChatMessage
from tasuki.server.text.chat_renderer import ChatRenderer
from tasuki.server.text.chat_template import RenderedPrompt
from tasuki.server.text.grammars.tool_choice import answer_grammar
from tasuki.server.text.parsing.answer_parser import AnswerParser
from tasuki.server.text.text_codec import TextCodec
from tasuki.server.text.thinking import Thinking

from .answer_format import read_answer_format
from .chat_reply import ChatReply
from .generation import (
    AskedReply,
    ServedModel,
    name_unknown,
    prompt_salt,
    read_submit,
    shown_prompts,
)
from .messages import (
    parallel_calls,
    read_chat_messages,
    read_content,
    read_offered_tools,
    read_tool_choice,
    read_tools,
)
from .reply import ReplyHead
from .request_fields import RequestFields, check_account_fields
from .sampling import (
    SHOWN_IDS,
    AnswerOptions,
    read_options,
    read_prompt_logprobs,
    read_token_names,
    read_top_logprobs,
)
from .template_variables import read_template_variables

_SHOWN = frozenset({*SHOWN_IDS, "include_reasoning", "continue_final_message"})
_HONOURED = frozenset({"n", "best_of", "prompt_logprobs"}) | _SHOWN


def read_chat(model: ServedModel, request: web.Request, fields: RequestFields) -> AskedReply:
    """On any thread."""
    name_unknown(model, request, fields, OF_CHATS)
    prompt_logprobs = read_prompt_logprobs(fields)
    submit, options, parsers = read_chat_request(model, request, fields, prompt_logprobs, _HONOURED)
    check_scores("prompt_logprobs", [submit], 1)
    scored = None if prompt_logprobs is None else ScoredPrompt(submit.prompt)
    head = ReplyHead(f"chatcmpl-{submit.request_id}", model.named(fields.text("model")))
    shapes = [
        ChatReply(
            head,
            parsers(),
            read_token_names(fields, model.codec),
            place,
            with_logprobs=fields.flag("logprobs"),
            streamed=options.stream,
            with_reasoning=fields.get("include_reasoning") is None
            or fields.flag("include_reasoning"),
            prompt_logprobs=None if scored is None else (scored, prompt_logprobs or 0),
        )
        for place in range(options.choices)
    ]
    kept = submit_bytes(submit) + score_bytes(submit, 1) + value_bytes(read_tools(fields))
    ids = shown_prompts(fields, [submit])
    return AskedReply([submit], options, shapes, [scored], kept + ids_bytes(ids), ids)


def read_chat_request(
    model: ServedModel,
    request: web.Request,
    fields: RequestFields,
    prompt_logprobs: int | None = None,
    honoured: Collection[str] = (),
) -> tuple[Submit, AnswerOptions, Callable[[], AnswerParser]]:
    """A chat whatever its reply's shape is. fields: as of /v1/chat/completions. prompt_logprobs:
    as of the Submit; honoured: as of read_options(). The parser takes the answer apart. On any
    thread."""
    check_account_fields(fields)
    salt = prompt_salt(request, fields)
    rendered = render_chat(fields, model.codec, open_answer=opens_answer(fields), salt=salt)
    # Without a limit an answer may fill what the prompt leaves, as elsewhere.
    left = max(1, model.max_tokens - len(rendered.tokens))
    top = read_top_logprobs(fields, "top_logprobs")
    if top and not fields.flag("logprobs"):
        raise InvalidField("top_logprobs", "needs logprobs: true")
    options = read_options(
        fields, model.codec, left, model.sampling_defaults, top, honoured=honoured
    )
    tools, parallel = read_tools(fields), parallel_calls(fields)
    asked = answer_grammar(
        read_tool_choice(fields),
        read_offered_tools(fields),
        read_answer_format(fields),
        model.codec,
        parallel=parallel,
    )
    options = options.placed(asked, rendered.thinking, model.codec)
    submit = read_submit(request, fields, rendered, options, model, prompt_logprobs=prompt_logprobs)
    submit = replace(submit, prediction=_prediction(fields, model.codec))
    thinking = rendered.thinking
    is_parsed = bool(tools) or thinking is not Thinking.NEVER
    options, stops = options.split_stops(model.stop_place, is_parsed=is_parsed)
    parser = partial(
        model.parser, thinking, tools, parallel, stops, options.sampling.thinking_tokens
    )
    return submit, options, parser


def opens_answer(fields: RequestFields) -> bool:
    """Whether the prompt ends with what the template begins an answer by; where nothing is said,
    unless the last message goes on."""
    if fields.get("add_generation_prompt") is None:
        return not fields.flag("continue_final_message")
    return fields.flag("add_generation_prompt")


def render_chat(
    fields: RequestFields, codec: TextCodec, *, open_answer: bool, salt: bytes
) -> RenderedPrompt:
    """`messages` and `tools` through the checkpoint's template. salt: as of the prompt."""
    messages, renderer = read_chat_messages(fields), ChatRenderer(codec)
    goes_on = fields.flag("continue_final_message")
    if goes_on:
        _check_goes_on(messages, open_answer)
    rendered = renderer.conversation(
        messages,
        open_answer=open_answer,
        salt=salt,
        tools=read_tools(fields),
        variables=read_template_variables(fields),
    )
    return renderer.without_closing(rendered) if goes_on else rendered


def _check_goes_on(messages: Sequence[ChatMessage], open_answer: bool) -> None:
    """Raise InvalidField where the answer cannot go on in the last message."""
    field = "continue_final_message"
    if open_answer:
        raise InvalidField(field, "needs add_generation_prompt: false")
    if messages[-1].role != "assistant" or messages[-1].tool_calls:
        raise InvalidField(field, "needs a last message that is an assistant's, without tool_calls")


def _prediction(fields: RequestFields, codec: TextCodec) -> Tokens:
    """Of what the request says its answer will be; none where it says nothing. The answer may be
    drafted from them, which changes none of its tokens. Raises InvalidRequest."""
    if fields.get("prediction") is None:
        return np.empty(0, dtype=np.int32)
    given = fields.fields("prediction")
    if given.text("type") != "content":
        raise InvalidField("prediction.type", 'must be "content"')
    text = read_content(given.get("content"), "prediction.content", optional=False)
    tokenizer = codec.require_tokenizer()
    # No text so long is worth encoding.
    check_length("prediction", len(text) // tokenizer.longest_token, codec)
    return checked_prediction(tokenizer.encode(text), codec)
