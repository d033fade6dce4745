"""Routes of Anthropic's Messages API over one engine: POST /v1/messages and its token count.

Reads a Messages request with its `tools` and `tool_choice`. On any thread. An error names the
position of the wrong value.

An unsupported field is rejected if it would change the answer. Fields about accounts, routing and
cache lifetimes are ignored.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from aiohttp import web

from tasuki.engine.messages import Submit
from tasuki.server.auth.limits import submit_bytes, value_bytes
from tasuki.server.engine_client import Answering
from tasuki.server.errors import InvalidField
from tasuki.server.http.errors import HttpRefusal
from tasuki.server.openai.generation import ServedModel, answer_with, prompt_salt, read_submit
from tasuki.server.openai.request_fields import (
    RequestFields,
    ToolNames,
    is_among,
    optional,
    required,
)
from tasuki.server.openai.sampling import AnswerOptions, AskedThinking, read_options
from tasuki.server.openai.token_details import wants_hit
from tasuki.server.openapi.anthropic_fields import DIRECT, EFFORTS, MAX_USER_ID, OF_MESSAGES
from tasuki.server.pictures.part_reader import pictures_read
from tasuki.server.request_checks import check_stops
from tasuki.server.text.chat_renderer import EFFORT, MAX_TOOLS, ChatRenderer, effort_of_template
from tasuki.server.text.grammars.asked_grammar import AskedGrammar, of_schema
from tasuki.server.text.grammars.call_grammar import OfferedTool, ToolChoice, answer_grammar
from tasuki.server.text.rendering.chat_template import RenderedPrompt
from tasuki.server.text.text_answer import Thinking
from tasuki.server.text.text_codec import TextCodec

from .conversation import ThinkingChoice, read_conversation, read_thinking_choice
from .message_writer import MessageHead, MessageWriter

_CHANGES_THE_PROMPT = ("input_examples", "defer_loading", "allowed_callers")


@dataclass(frozen=True)
class MessageTools:
    """The tools of a request. offered: tools shown to the model; empty if `tool_choice` is none.
    parallel: True if an answer may hold more than one call. choice: the calls the model may or must
    make."""

    offered: list[OfferedTool]
    parallel: bool
    choice: ToolChoice

    @property
    def definitions(self) -> list[Mapping[str, Any]]:
        """Return the tool definitions in OpenAI's JSON shape, as chat templates expect them."""
        return [tool.definition for tool in self.offered]


def read_message_tools(fields: RequestFields) -> MessageTools:
    tools, names = fields.items("tools", MAX_TOOLS), ToolNames()
    offered = [_offered(tool, f"tools[{index}]") for index, tool in enumerate(tools)]
    for index, tool in enumerate(offered):
        names.add(tool.name, f"tools[{index}].name")
    choice = fields.fields("tool_choice")
    kind = choice.text("type")
    parallel = not choice.flag("disable_parallel_tool_use")
    shown = [] if kind == "none" else offered
    return MessageTools(shown, parallel, _choice(kind, choice))


def _choice(kind: str | None, choice: RequestFields) -> ToolChoice:
    if kind in (None, "auto", "none"):
        return ToolChoice()
    if kind == "any":
        return ToolChoice(forced=True)
    name = choice.text("name")
    if kind != "tool" or name is None:
        raise InvalidField("tool_choice", "must be auto, none, any, or tool with its name")
    return ToolChoice(forced=True, name=name)


def _offered(tool: Any, place: str) -> OfferedTool:
    if not isinstance(tool, dict) or not isinstance(tool.get("name"), str):
        raise InvalidField(place, "must be an object with a name")
    if tool.get("type") not in (None, "custom"):
        raise InvalidField(
            f"{place}.type", f"{tool['type']!r:.60} is a tool of Anthropic's own: use custom ones"
        )
    strict = bool(optional(tool, "strict", bool, place))
    for name in _CHANGES_THE_PROMPT:
        if not is_among(tool.get(name), DIRECT):
            raise InvalidField(f"{place}.{name}", "is not supported here: leave it out")
    schema = required(tool, "input_schema", dict, place)
    description = optional(tool, "description", str, place)
    described = {} if description is None else {"description": description}
    function = {"name": tool["name"], **described, "parameters": schema}
    return OfferedTool({"type": "function", "function": function}, strict)


_SAMPLING = ("temperature", "top_p", "top_k", "seed", "stream")


@dataclass(frozen=True)
class AskedMessage:
    """A parsed Messages request, and the writer of its reply. kept_bytes: bytes of memory held by
    the request and its tools until the reply ends."""

    submit: Submit
    options: AnswerOptions
    writer: MessageWriter
    kept_bytes: int


def read_message_request(
    model: ServedModel, request: web.Request, fields: RequestFields
) -> AskedMessage:
    max_tokens = fields.integer("max_tokens")
    if max_tokens is None:
        raise InvalidField("max_tokens", "is missing: send how many tokens an answer may have")
    choice = read_thinking_choice(fields, hides_unasked=model.hides_unasked_thinking)
    rendered, tools = _read_prompt(model, request, fields, choice)
    tokens = rendered.tokens
    free_tokens = max(1, model.max_tokens - len(tokens))
    options = _read_options(model, fields, min(max_tokens, free_tokens), choice.budget)
    asked = answer_grammar(
        tools.choice, tools.offered, _format(fields), model.codec, parallel=tools.parallel
    )
    options = options.placed(asked, rendered.thinking, model.codec)
    options, stops = options.split_stops(
        model.stop_place,
        is_parsed=bool(tools.offered) or rendered.thinking is not Thinking.NEVER,
    )
    parser = model.parser(
        rendered.thinking,
        tools.definitions,
        tools.parallel,
        stops,
        options.sampling.thinking_tokens,
    )
    submit = read_submit(request, _affinity(fields), rendered, options, model)
    head = MessageHead(
        f"msg_{submit.request_id}",
        model.named(fields.text("model")),
        len(tokens),
        fills_context=max_tokens > free_tokens,
        with_hit=wants_hit(request),
    )
    kept = submit_bytes(submit) + value_bytes(tools.definitions)
    return AskedMessage(submit, options, MessageWriter(head, parser, choice), kept)


def count_message_tokens(model: ServedModel, request: web.Request, fields: RequestFields) -> int:
    choice = read_thinking_choice(fields, hides_unasked=model.hides_unasked_thinking)
    rendered, _ = _read_prompt(model, request, fields, choice)
    return len(rendered.tokens)


def _read_prompt(
    model: ServedModel, request: web.Request, fields: RequestFields, choice: ThinkingChoice
) -> tuple[RenderedPrompt, MessageTools]:
    """Return the rendered prompt of a Messages request, and its tools. choice: the thinking
    settings."""
    fields.refuse_unknown(OF_MESSAGES)
    _check_context_edits(fields)
    reader = model.picture_reader(fields)
    conversation = read_conversation(fields, reader)
    pictures = pictures_read(reader)
    tools, salt = read_message_tools(fields), prompt_salt(request, fields)
    rendered = ChatRenderer(model.codec).conversation(
        conversation.messages,
        open_answer=True,
        salt=salt,
        tools=tools.definitions,
        variables=_template_variables(model.codec, fields, choice),
        breakpoints=conversation.breakpoints,
    )
    return model.with_pictures(rendered, pictures, salt), tools


def _read_options(
    model: ServedModel, fields: RequestFields, max_tokens: int, budget: int | None
) -> AnswerOptions:
    """Return the options of the answer: sampling, stop strings, streaming. max_tokens: largest
    number of new tokens. budget: largest number of thinking tokens; None: no limit."""
    fields_of_chat = fields.only(*_SAMPLING, max_tokens=max_tokens)
    options = read_options(fields_of_chat, model.codec, max_tokens, model.sampling_defaults, 0)
    if budget is not None:
        options = replace(options, thinking=AskedThinking("thinking.budget_tokens", budget))
    return replace(options, stops=check_stops("stop_sequences", fields.items("stop_sequences")))


def _affinity(fields: RequestFields) -> RequestFields:
    """Return the fields used for routing and caching under their names in chat requests:
    `metadata.user_id` as `prompt_cache_key`, `cache_salt`, and `priority`."""
    user = fields.fields("metadata").short_text("user_id", MAX_USER_ID, "metadata.user_id")
    return fields.only("cache_salt", "priority", prompt_cache_key=user)


def _template_variables(
    codec: TextCodec, fields: RequestFields, choice: ThinkingChoice
) -> dict[str, Any]:
    """Return the chat template's variables for thinking and effort, under the names used by chat
    requests."""
    config = fields.fields("output_config")
    effort = config.text("effort")
    if effort not in (None, *EFFORTS):
        raise InvalidField("output_config.effort", f"must be one of {', '.join(EFFORTS)}")
    if config.get("task_budget") is not None:
        raise InvalidField("output_config.task_budget", "is not supported here: leave it out")
    variables: dict[str, Any] = {}
    if choice.enabled is not None:
        variables["enable_thinking"] = choice.enabled
    if effort is not None and choice.enabled is not False:
        variables[EFFORT] = effort_of_template(codec, "output_config.effort", effort)
    elif choice.effort is not None:
        variables[EFFORT] = effort_of_template(codec, "thinking.budget_tokens", choice.effort)
    return variables


def _format(fields: RequestFields) -> AskedGrammar | None:
    """Return the answer's grammar from `output_config.format` or its older name `output_format`.
    Return None without either. Raises InvalidField if both are given."""
    found = []
    for field, holder in (
        ("output_config.format", fields.fields("output_config")),
        ("output_format", fields),
    ):
        form = holder.fields(field.rpartition(".")[2])
        if holder.get(field.rpartition(".")[2]) is None:
            continue
        if form.text("type") != "json_schema" or form.get("schema") is None:
            raise InvalidField(field, "must be of type json_schema, with a schema")
        found.append(of_schema(field, form.get("schema")))
    if len(found) > 1:
        raise InvalidField(found[1].field, f"cannot be given beside {found[0].field}")
    return found[0] if found else None


def _check_context_edits(fields: RequestFields) -> None:
    """Raise InvalidField for an edit in `context_management`, unless the edit keeps all
    thinking."""
    for index, edit in enumerate(fields.fields("context_management").items("edits")):
        if (
            not isinstance(edit, dict)
            or edit.get("type") != "clear_thinking_20251015"
            or edit.get("keep") not in ("all", {"type": "all"})
        ):
            raise InvalidField(
                f"context_management.edits[{index}]", "is not done here: edit the messages instead"
            )


VERSION_HEADER = "anthropic-version"
_FIRST_VERSION = "2023-06-01"
"""The oldest accepted `anthropic-version`: the first one with named events. Later versions removed
fields, still accepted here, and added fields with new names."""
_DATE = re.compile(r"\d{4}-\d{2}-\d{2}")


def message_routes(engine: Answering, model: ServedModel) -> list[web.RouteDef]:
    handlers = MessageHandlers(engine, model)
    return [
        web.post("/v1/messages", handlers.create),
        web.post("/v1/messages/count_tokens", handlers.count_tokens),
    ]


class MessageHandlers:
    def __init__(self, engine: Answering, model: ServedModel) -> None:
        self._engine = engine
        self._model = model

    async def create(self, request: web.Request) -> web.StreamResponse:
        _check_version(request)
        model = self._model
        with model.hold(request) as hold:
            read = partial(read_message_request, model, request)
            asked = await model.read(request, hold, read)
            hold.resize(asked.kept_bytes)
            return await answer_with(
                *(self._engine, model, request, hold), asked.submit, asked.options, asked.writer
            )

    async def count_tokens(self, request: web.Request) -> web.Response:
        _check_version(request)
        model = self._model
        with model.hold(request) as hold:
            read = partial(count_message_tokens, model, request)
            count = await model.read(request, hold, read)
        return web.json_response({"input_tokens": count})


def _check_version(request: web.Request) -> None:
    """Raise HttpRefusal for an `anthropic-version` other than a date, or before `_FIRST_VERSION`. A
    request without the header passes. The beta header is ignored: additions of a beta have fields
    of their own."""
    version = request.headers.get(VERSION_HEADER, _FIRST_VERSION)
    if not _DATE.fullmatch(version) or version < _FIRST_VERSION:
        raise HttpRefusal(
            400,
            "unknown_version",
            f"{VERSION_HEADER} {version:.40}: send {_FIRST_VERSION} or later",
        )
