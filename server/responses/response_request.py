"""Reader of a Responses request. On any thread.

An unsupported field is rejected if it would change the answer. Fields about accounts and routing
are ignored.
"""

import time
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

from aiohttp import web

from tasuki.engine.messages import Submit
from tasuki.server.auth.limits import submit_bytes, value_bytes
from tasuki.server.errors import InvalidField, PromptTooLong
from tasuki.server.openai.generation import ServedModel, read_submit
from tasuki.server.openai.messages import parallel_calls
from tasuki.server.openai.request_fields import RequestFields, check_account_fields
from tasuki.server.openai.sampling import (
    AnswerOptions,
    read_format,
    read_options,
    read_top_logprobs,
)
from tasuki.server.openai.token_details import TokenNames, wants_hit
from tasuki.server.openapi.common_fields import MAX_ID
from tasuki.server.openapi.responses_fields import (
    AS_IT_IS,
    ENCRYPTED,
    INCLUDED,
    LOGPROBS,
    OF_RESPONSES,
)
from tasuki.server.text.grammars.asked_grammar import AskedGrammar
from tasuki.server.text.grammars.call_grammar import ToolChoice, answer_grammar
from tasuki.server.text.parsing.answer_parser import AnswerParser
from tasuki.server.text.text_answer import Thinking

from .asked_turn import conversation_id, is_stored, keeper, read_turn
from .output_items import MessageLogprobs
from .response_writer import ResponseHead, ResponseWriter
from .stored_responses import Responses, TurnRecord
from .tools import ResponseTools, echoed_tools, read_response_tools

_PENALTIES = ("presence_penalty", "frequency_penalty")
_SAMPLING = (
    *("temperature", "top_p", "top_k", "min_p", "seed", "stop_token_ids", "ignore_eos"),
    *("repetition_penalty", *_PENALTIES),
    *("thinking_token_budget", "thinking_budget"),
)


@dataclass(frozen=True)
class AskedResponse:
    """A parsed Responses request, and the writer of its reply. kept_bytes: bytes of memory held by
    these until the reply ends. in_background: True if the response is made without a waiting
    client."""

    submit: Submit
    options: AnswerOptions
    writer: ResponseWriter
    kept_bytes: int
    in_background: bool = False


@dataclass(frozen=True)
class TooLongResponse:
    """A streamed request with a too long prompt. The error is sent as an event of the stream,
    because agents shorten their conversation only after such an event. writer: writer of the
    stream."""

    error: PromptTooLong
    writer: ResponseWriter


def read_response_request(
    model: ServedModel, store: Responses, request: web.Request, fields: RequestFields
) -> AskedResponse | TooLongResponse:
    """Read a Responses request, and render its prompt. A too long prompt of a streamed request is
    returned as a TooLongResponse. Raises InvalidRequest, PromptTooLong, PermissionDenied,
    HttpRefusal."""
    try:
        return _read(model, store, request, fields)
    except PromptTooLong as too_long:
        error = _of_input(too_long)
        if not fields.flag("stream"):
            raise error from too_long
        # The too long prompt would be among the echoed fields.
        head = ResponseHead.of(_plain_fields(model, fields), {})
        parser = AnswerParser(Thinking.NEVER, ())
        writer = ResponseWriter(head, parser, ResponseTools([], {}, True, ToolChoice()))
        return TooLongResponse(error, writer)


def count_response_tokens(
    model: ServedModel, store: Responses, request: web.Request, fields: RequestFields
) -> int:
    """Return the number of tokens in the request's prompt. Raises as read_response_request()."""
    refuse_unserved(fields)
    model.named(fields.text("model"))
    turn = read_turn(model, store, request, fields, read_response_tools(fields))
    return len(turn.prompt(model).tokens)


def _of_input(error: PromptTooLong) -> PromptTooLong:
    """Return the error with the field name `input` in place of `messages`. The renderer names the
    field `messages`."""
    if error.field != "messages":
        return error
    return PromptTooLong(f"input{str(error).removeprefix('messages')}", "input")


def _read(
    model: ServedModel, store: Responses, request: web.Request, fields: RequestFields
) -> AskedResponse:
    refuse_unserved(fields)
    tools = read_response_tools(fields)
    turn = read_turn(model, store, request, fields, tools)
    rendered = turn.prompt(model)
    room = max(1, model.max_tokens - len(rendered.tokens))
    options = read_response_options(model, fields, room)
    asked = answer_grammar(
        tools.choice, tools.offered, _format(fields), model.codec, parallel=tools.parallel
    )
    options = options.placed(asked, rendered.thinking, model.codec)
    submit = read_submit(request, fields, rendered, options, model)
    head = response_head(model, request, fields, options)
    parser = model.parser(
        rendered.thinking,
        tools.definitions,
        tools.parallel,
        thinking_tokens=options.sampling.thinking_tokens,
    )
    shown = options.sampling.top_logprobs or LOGPROBS in _include(fields)
    logprobs = MessageLogprobs(TokenNames(model.codec.tokenizer)) if shown else None
    writer = ResponseWriter(head, parser, tools, logprobs)
    kept = submit_bytes(submit) + value_bytes(tools.definitions) + head.kept_bytes
    keep = keeper(store, request, fields, turn.named)
    if keep is not None:
        pictures = turn.kept_pictures(submit.pictures)
        record = TurnRecord(submit.prompt, turn.messages, turn.settings.digest, pictures)
        writer.keep(record, keep)
        kept += record.kept_bytes
    return AskedResponse(submit, options, writer, kept, fields.flag("background"))


def response_head(
    model: ServedModel, request: web.Request, fields: RequestFields, options: AnswerOptions
) -> ResponseHead:
    return ResponseHead.of(
        {**_plain_fields(model, fields), **_sampled(options), "store": is_stored(fields)},
        _echoed(fields),
        wants_hit(request),
        carries_reasoning=ENCRYPTED in _include(fields),
    )


def refuse_unserved(fields: RequestFields) -> None:
    fields.refuse_unknown(OF_RESPONSES)
    for name, harmless in AS_IT_IS.items():
        fields.refuse_but(name, harmless)
    check_account_fields(fields)
    if fields.flag("background") and not is_stored(fields):
        raise InvalidField("store", "must not be false beside background: it could not be fetched")
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
        if name not in INCLUDED:
            raise InvalidField(
                "include", f"may not hold {name!r:.60}: only {ENCRYPTED} and {LOGPROBS}"
            )
    return wanted


def read_response_options(model: ServedModel, fields: RequestFields, room: int) -> AnswerOptions:
    wanted = fields.integer("max_output_tokens")
    if wanted is not None and wanted < 1:
        raise InvalidField("max_output_tokens", f"must be at least 1, not {wanted}")
    limit = room if wanted is None else min(wanted, room)
    fields_of_chat = fields.only(*_SAMPLING, "stream", max_tokens=limit)
    top = read_top_logprobs(fields, "top_logprobs")
    return read_options(fields_of_chat, model.codec, limit, model.sampling_defaults, top)


def _plain_fields(model: ServedModel, fields: RequestFields) -> dict[str, Any]:
    """Return the fields of a response with bounded length, such as its id and model. REQUIRES:
    refuse_unserved() accepted the request."""
    effort = fields.fields("reasoning").text("effort")
    conversation = conversation_id(fields)
    return {
        "id": f"resp_{uuid4().hex}",
        "object": "response",
        "created_at": int(time.time()),
        "model": model.named(fields.text("model")),
        "background": fields.flag("background"),
        "max_output_tokens": fields.integer("max_output_tokens"),
        "max_tool_calls": fields.integer("max_tool_calls"),
        "parallel_tool_calls": parallel_calls(fields),
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
        **({} if conversation is None else {"conversation": {"id": f"{conversation:.{MAX_ID}}"}}),
    }


def _sampled(options: AnswerOptions) -> dict[str, Any]:
    names = ("temperature", "top_p", *_PENALTIES)
    return {name: getattr(options.sampling, name) for name in names}


def _echoed(fields: RequestFields) -> dict[str, Any]:
    """Return the request's fields to repeat in the response. Unlike the fields of _plain_fields(),
    their length is not bounded."""
    return {
        "instructions": fields.get("instructions"),
        "metadata": fields.items_by_name("metadata"),
        "text": {"format": fields.fields("text").get("format") or {"type": "text"}},
        "tool_choice": fields.get("tool_choice") or "auto",
        "tools": echoed_tools(fields),
    }
