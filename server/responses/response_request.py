"""What a Responses request asks. On any thread.

A field that would change the answer and that this engine cannot honour is refused, never ignored;
fields about accounts and routing are ignored.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any
from uuid import uuid4

from aiohttp import web

from tasuki.engine.messages import Submit
from tasuki.server.errors import InvalidField, PromptTooLong
from tasuki.server.http.auth import http_request_context
from tasuki.server.http.errors import HttpRefusal
from tasuki.server.openai.answer_format import read_format
from tasuki.server.openai.generation import ServedModel, prompt_salt, read_submit
from tasuki.server.openai.request_fields import MAX_ID, RequestFields, check_account_fields
from tasuki.server.openai.sampling import AnswerOptions, read_options, read_top_logprobs
from tasuki.server.openai.template_variables import NO_EFFORT, read_template_variables
from tasuki.server.openai.usage import wants_hit
from tasuki.server.replies.kept_bytes import submit_bytes, value_bytes
from tasuki.server.replies.reasoning_effort import EFFORT, effort_of_template
from tasuki.server.replies.token_logprobs import TokenNames
from tasuki.server.text.chat_message import ChatMessage
from tasuki.server.text.chat_template import RenderedPrompt
from tasuki.server.text.grammars.asked_grammar import AskedGrammar, placed
from tasuki.server.text.grammars.tool_choice import ToolChoice, answer_grammar
from tasuki.server.text.parsing.answer_parser import AnswerParser
from tasuki.server.text.text_codec import TextCodec
from tasuki.server.text.thinking import Thinking

from .input_items import read_input
from .message_logprobs import MessageLogprobs
from .response_head import ResponseHead
from .response_writer import ResponseWriter
from .stored_items import StoredItems
from .stored_responses import Responses, StoredResponse
from .tools import ResponseTools, echoed_tools, read_response_tools
from .turn_prompt import PromptSettings, turn_prompt
from .turn_record import TurnRecord

_PENALTIES = ("presence_penalty", "frequency_penalty")
_SAMPLING = (
    *("temperature", "top_p", "top_k", "min_p", "seed", "stop_token_ids", "ignore_eos"),
    *("repetition_penalty", *_PENALTIES),
)
_VARIABLES = ("chat_template_kwargs", "enable_thinking", "preserve_thinking")
_HONOURED = frozenset(
    {
        *("model", "input", "instructions", "tools", "tool_choice", "parallel_tool_calls"),
        *("max_output_tokens", "stream", "store", "previous_response_id", "include", "text"),
        *("reasoning", "metadata", "prompt_cache_key", "cache_salt", "priority", "top_logprobs"),
        *(*_SAMPLING, *_VARIABLES),
    }
)
_WITHOUT_EFFECT_ON_ANSWERS = frozenset(
    {
        *("user", "safety_identifier", "service_tier", "client_metadata", "access_programs"),
        # Of a cache's lifetime, of padding that hides lengths, of calls of OpenAI's own tools.
        *("prompt_cache_retention", "prompt_cache_options", "stream_options", "max_tool_calls"),
    }
)
# Field to the values that ask for what is done anyway.
_AS_IT_IS: dict[str, tuple[Any, ...]] = {
    "background": (False,),
    "truncation": ("disabled",),
    "context_management": ([],),
}
_KNOWN = _HONOURED | _WITHOUT_EFFECT_ON_ANSWERS | _AS_IT_IS.keys()

_ENCRYPTED = "reasoning.encrypted_content"
_LOGPROBS = "message.output_text.logprobs"
# Of items that no answer here has.
_ABSENT = (
    "file_search_call.results",
    "web_search_call.results",
    "web_search_call.action.sources",
    "message.input_image.image_url",
    "computer_call_output.output.image_url",
    "code_interpreter_call.outputs",
)
_PRESERVES = {None: None, "auto": None, "current_turn": False, "all_turns": True}


@dataclass(frozen=True)
class AskedResponse:
    """What a request asks, and the writer of its reply. kept_bytes: memory that these take until
    the reply's end."""

    submit: Submit
    options: AnswerOptions
    writer: ResponseWriter
    kept_bytes: int


@dataclass(frozen=True)
class TooLongResponse:
    """Of a stream: agents that shorten their conversation look for it there, and nowhere else."""

    error: PromptTooLong
    writer: ResponseWriter


@dataclass(frozen=True)
class _AskedTurn:
    """messages: the whole conversation."""

    messages: Sequence[ChatMessage]
    settings: PromptSettings
    prompt: RenderedPrompt


def read_response_request(
    model: ServedModel, store: Responses, request: web.Request, fields: RequestFields
) -> AskedResponse | TooLongResponse:
    """Raises InvalidRequest, PromptTooLong, PermissionDenied, HttpRefusal."""
    try:
        return _read(model, store, request, fields)
    except PromptTooLong as error:
        if not fields.flag("stream"):
            raise
        # The prompt is among what it would echo, and is too long.
        head = ResponseHead.of(_plain_fields(model, fields), {})
        parser = AnswerParser(Thinking.NEVER, ())
        writer = ResponseWriter(head, parser, ResponseTools([], {}, True, ToolChoice()))
        return TooLongResponse(error, writer)


def count_response_tokens(
    model: ServedModel, store: Responses, request: web.Request, fields: RequestFields
) -> int:
    """Return how many tokens the request's prompt has. Raises as read_response_request()."""
    _refuse_unserved(fields)
    model.named(fields.text("model"))
    turn = _read_turn(model, store, request, fields, read_response_tools(fields))
    return len(turn.prompt.tokens)


def _read(
    model: ServedModel, store: Responses, request: web.Request, fields: RequestFields
) -> AskedResponse:
    _refuse_unserved(fields)
    tools = read_response_tools(fields)
    turn = _read_turn(model, store, request, fields, tools)
    rendered = turn.prompt
    room = max(1, model.max_tokens - len(rendered.tokens))
    options = _read_options(model, fields, room)
    asked = answer_grammar(
        tools.choice, tools.offered, _format(fields), model.codec, parallel=tools.parallel
    )
    options = options.following(asked, placed(asked, rendered.thinking, model.codec))
    submit = read_submit(request, fields, rendered, options, model)
    is_stored = fields.get("store") is None or fields.flag("store")
    head = ResponseHead.of(
        {**_plain_fields(model, fields), **_sampled(options), "store": is_stored},
        _echoed(fields),
        wants_hit(request),
        carries_reasoning=_ENCRYPTED in _include(fields),
    )
    parser = model.parser(rendered.thinking, tools.definitions, tools.parallel)
    shown = options.sampling.top_logprobs or _LOGPROBS in _include(fields)
    logprobs = MessageLogprobs(TokenNames(model.codec.tokenizer)) if shown else None
    writer = ResponseWriter(head, parser, tools, logprobs)
    kept = submit_bytes(submit) + value_bytes(tools.definitions) + head.kept_bytes
    if is_stored:
        record = TurnRecord(submit.prompt, turn.messages, turn.settings.digest)
        writer.keep(record, partial(store.put, http_request_context(request)))
        kept += record.kept_bytes
    return AskedResponse(submit, options, writer, kept)


def _read_turn(
    model: ServedModel,
    store: Responses,
    request: web.Request,
    fields: RequestFields,
    tools: ResponseTools,
) -> _AskedTurn:
    previous = _previous(store, request, fields)
    before = None if previous is None else previous.turn
    old = () if before is None else before.messages()
    stored = StoredItems(store, http_request_context(request))
    messages = read_input(fields.get("input"), old, stored)
    settings = PromptSettings(
        fields.text("instructions"), tools.definitions, _template_variables(model.codec, fields)
    )
    salt = prompt_salt(request, fields)
    prompt = turn_prompt(model.codec, settings, messages, before, len(old), salt)
    return _AskedTurn(messages, settings, prompt)


def _previous(
    store: Responses, request: web.Request, fields: RequestFields
) -> StoredResponse | None:
    name = fields.text("previous_response_id")
    if name is None:
        return None
    found = store.get(http_request_context(request), name)
    if found is None:
        raise HttpRefusal(
            400,
            "previous_response_not_found",
            f"previous_response_id {name!r:.100} is not stored here: send the whole conversation",
        )
    return found


def _refuse_unserved(fields: RequestFields) -> None:
    fields.refuse_unknown(_KNOWN)
    for name, harmless in _AS_IT_IS.items():
        fields.refuse_but(name, harmless)
    check_account_fields(fields)
    fields.integer("max_tool_calls")
    read_top_logprobs(fields, "top_logprobs")
    text = fields.fields("text")
    if text.get("verbosity") not in (None, "medium"):
        raise InvalidField("text.verbosity", "must be medium: ask for it in the instructions")
    _include(fields)


def _format(fields: RequestFields) -> AskedGrammar | None:
    form = fields.fields("text").fields("format")
    if fields.fields("text").get("format") is None:
        return None
    return read_format("text.format", form, form.get("schema"))


def _include(fields: RequestFields) -> list[Any]:
    wanted = fields.items("include")
    for name in wanted:
        if name not in (_ENCRYPTED, _LOGPROBS, *_ABSENT):
            raise InvalidField(
                "include", f"may not hold {name!r:.60}: only {_ENCRYPTED} and {_LOGPROBS}"
            )
    return wanted


def _template_variables(codec: TextCodec, fields: RequestFields) -> dict[str, Any]:
    """As chats name them. Summaries of reasoning are not made: its text is shown."""
    reasoning = fields.fields("reasoning")
    context = reasoning.text("context")
    if context not in _PRESERVES:
        raise InvalidField("reasoning.context", "must be auto, current_turn or all_turns")
    asked = {name: fields.get(name) for name in _VARIABLES}
    if asked["preserve_thinking"] is None:
        asked["preserve_thinking"] = _PRESERVES[context]
    effort = reasoning.short_text("effort", MAX_ID, "reasoning.effort")
    if effort is not None and effort != NO_EFFORT:
        effort = effort_of_template(codec, "reasoning.effort", effort)
    return read_template_variables(RequestFields({**asked, EFFORT: effort}))


def _read_options(model: ServedModel, fields: RequestFields, room: int) -> AnswerOptions:
    asked = {name: fields.get(name) for name in (*_SAMPLING, "stream")}
    wanted = fields.integer("max_output_tokens")
    if wanted is not None and wanted < 1:
        raise InvalidField("max_output_tokens", f"must be at least 1, not {wanted}")
    limit = room if wanted is None else min(wanted, room)
    fields_of_chat = RequestFields({**asked, "max_tokens": limit})
    top = read_top_logprobs(fields, "top_logprobs")
    return read_options(fields_of_chat, model.codec, limit, model.sampling_defaults, top)


def _plain_fields(model: ServedModel, fields: RequestFields) -> dict[str, Any]:
    """Return a response's fields that are short whatever the request is. REQUIRES:
    _refuse_unserved() let the request pass."""
    parallel = fields.get("parallel_tool_calls")
    effort = fields.fields("reasoning").text("effort")
    return {
        "id": f"resp_{uuid4().hex}",
        "object": "response",
        "created_at": int(time.time()),
        "model": model.named(fields.text("model")),
        "background": False,
        "max_output_tokens": fields.integer("max_output_tokens"),
        "max_tool_calls": fields.integer("max_tool_calls"),
        "parallel_tool_calls": True if parallel is None else bool(parallel),
        "previous_response_id": fields.short_text("previous_response_id", MAX_ID),
        "prompt_cache_key": fields.get("prompt_cache_key"),
        "reasoning": {"effort": effort, "summary": None},
        "safety_identifier": fields.get("safety_identifier"),
        "service_tier": "default",
        "temperature": None,
        "top_logprobs": fields.integer("top_logprobs") or 0,
        "top_p": None,
        **dict.fromkeys(_PENALTIES, 0.0),
        "truncation": "disabled",
        "user": fields.get("user"),
    }


def _sampled(options: AnswerOptions) -> dict[str, Any]:
    names = ("temperature", "top_p", *_PENALTIES)
    return {name: getattr(options.sampling, name) for name in names}


def _echoed(fields: RequestFields) -> dict[str, Any]:
    """Return the fields that are as long as the client made them."""
    return {
        "instructions": fields.get("instructions"),
        "metadata": fields.items_by_name("metadata"),
        "text": {"format": fields.fields("text").get("format") or {"type": "text"}},
        "tool_choice": fields.get("tool_choice") or "auto",
        "tools": echoed_tools(fields),
    }
