"""Tests of every field's declared schema against its reader. Each reader gets values of every type
in each field. It refuses values refused by the schema, by the field's name. A breach of a rule
outside the schema, or of a rule for a part of a field, is refused by its place."""

from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import Any
from unittest.mock import Mock

import jsonschema
import pytest
from aiohttp import web
from aiohttp.test_utils import make_mocked_request

from tasuki.engine.messages import RequestId
from tasuki.server.anthropic.routes import count_message_tokens, read_message_request
from tasuki.server.errors import InvalidRequest
from tasuki.server.http.errors import HttpRefusal
from tasuki.server.http.headers import rename_request
from tasuki.server.openai.chat import read_chat
from tasuki.server.openai.completions import read_completion
from tasuki.server.openai.generation import ServedModel
from tasuki.server.openai.request_fields import RequestFields
from tasuki.server.openai.routes import detokenized, tokenized
from tasuki.server.openapi.anthropic_fields import COUNTED_MESSAGE, MESSAGE, OF_COUNTS, OF_MESSAGES
from tasuki.server.openapi.common_fields import FORMATS, Fields, Schema
from tasuki.server.openapi.openai_fields import (
    CHAT,
    COMPLETION,
    DETOKENIZE,
    OF_CHATS,
    OF_COMPLETIONS,
    OF_DETOKENIZE,
    OF_TOKENIZE,
    TOKENIZE,
)
from tasuki.server.openapi.responses_fields import (
    COMPACTED,
    COUNTED_RESPONSE,
    OF_COMPACT,
    OF_INPUT_TOKENS,
    OF_RESPONSES,
    RESPONSE,
)
from tasuki.server.responses.endpoints.compaction import read_compact_request
from tasuki.server.responses.response_request import count_response_tokens, read_response_request
from tasuki.server.responses.stored_responses import ResponseStore
from tasuki.server.text.text_codec import TextCodec
from tests.harness.agent_front import agent_codec

USER = [{"role": "user", "content": "it was"}]
PARAMETERS = {"type": "object", "properties": {"days": {"type": "integer"}}}
FUNCTION = {"type": "function", "function": {"name": "weather", "parameters": PARAMETERS}}
CHATS, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
MESSAGES, COUNTS = "/v1/messages", "/v1/messages/count_tokens"
RESPONSES, INPUT_TOKENS = "/v1/responses", "/v1/responses/input_tokens"
COMPACT = "/v1/responses/compact"
TABLES: Mapping[str, tuple[Fields, Schema, dict[str, Any]]] = {
    CHATS: (OF_CHATS, CHAT, {"messages": USER}),
    COMPLETIONS: (OF_COMPLETIONS, COMPLETION, {"prompt": "it was"}),
    MESSAGES: (OF_MESSAGES, MESSAGE, {"messages": USER, "max_tokens": 50}),
    COUNTS: (OF_COUNTS, COUNTED_MESSAGE, {"messages": USER}),
    RESPONSES: (OF_RESPONSES, RESPONSE, {"input": "it was"}),
    INPUT_TOKENS: (OF_INPUT_TOKENS, COUNTED_RESPONSE, {"input": "it was"}),
    COMPACT: (OF_COMPACT, COMPACTED, {"input": "it was"}),
    "/tokenize": (OF_TOKENIZE, TOKENIZE, {"prompt": "it was"}),
    "/detokenize": (OF_DETOKENIZE, DETOKENIZE, {"tokens": [7]}),
}
# Other fields needed by a field.
_STREAM = {"stream_options": {"stream": True}}
BESIDE: Mapping[str, Mapping[str, dict[str, Any]]] = {
    CHATS: {**_STREAM, "top_logprobs": {"logprobs": True}, "tool_choice": {"tools": [FUNCTION]}},
    COMPLETIONS: _STREAM,
    MESSAGES: {"tool_choice": {"tools": [{"name": "weather", "input_schema": PARAMETERS}]}},
    RESPONSES: {"tool_choice": {"tools": [{"type": "function", "name": "weather"}]}},
}
PLAIN: list[Any] = [
    *(None, True, False, 0, 1, -1, 2, 1.0, 0.5, -0.5, 101, 1e3, -1e3, 2**31, 2**63, 1e300),
    *("", "a", " ", "a" * 65, "a" * 300, "b" * 1025, "auto", "none", "text", "required"),
    *([], [1], [2], [-1], [1.5], [True], ["a"], [""], [[]], [["a"]], [None], [{}], ["a"] * 20),
    *({}, {"a": 1}, {"a": None}, {"1": 1}, {"1": True}, {"1": 200}, {"a": "b"}, {"a": "b" * 513}),
    *({"1": "b"}, {"1": -(10**400)}, {str(number): 1 for number in range(301)}, [5], ["a" * 1025]),
    *(10**400, ["a"] * 129),
    *({"type": "text"}, {"type": "json_object"}, {"type": "json_schema"}, {"type": "enabled"}),
    *({"type": "disabled"}, {"type": "any"}, {"type": "ephemeral"}, {"type": "odd"}, {"type": 1}),
    *({"include_usage": True}, {"include_usage": 1}, {"effort": "low"}, {"effort": 1}),
]
SHAPED: list[Any] = [
    {"type": "json_schema", "json_schema": {"name": "a", "schema": PARAMETERS}},
    {"type": "json_schema", "json_schema": {"schema": 1}},
    {"type": "json_schema", "schema": PARAMETERS},
    {"format": {"type": "json_schema", "schema": PARAMETERS}},
    {"format": {"type": "json_schema"}},
    {"format": {"type": "text"}, "verbosity": "medium"},
    {"verbosity": "high"},
    {"type": "structural_tag", "format": {"type": "any_text"}},
    {"json": PARAMETERS},
    {"regex": ""},
    {"choice": ["a", "b"]},
    {"json_object": True},
    {"json_object": 1},
    {"a" * 65: "b"},
    {str(number): "b" for number in range(17)},
    {"type": "content", "content": "it was"},
    {"type": "content", "content": [{"type": "text", "text": "it"}]},
    {"type": "content", "content": 1},
    {"type": "enabled", "budget_tokens": 5},
    {"type": "enabled", "budget_tokens": 0},
    {"type": "adaptive", "display": "omitted"},
    {"type": "adaptive", "display": "odd"},
    {"messages": 1},
    {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
    {"edits": [{"type": "odd"}]},
    {"user_id": "a" * 257},
    {"task_budget": 1},
    {"context": "all_turns"},
    {"context": "odd"},
    [FUNCTION],
    [{**FUNCTION, "type": None}],
    [{**FUNCTION, "type": "odd"}],
    [{"function": {"name": "a", "strict": 1}}],
    [{"function": {"name": 1}}],
    [{"name": "weather", "input_schema": PARAMETERS}],
    [{"name": "weather", "input_schema": 1}],
    [{"name": "weather", "input_schema": PARAMETERS, "defer_loading": True}],
    [{"name": "weather", "input_schema": PARAMETERS, "defer_loading": 0}],
    [{"type": "function", "name": "weather", "parameters": PARAMETERS}],
    [{"type": "function", "name": "weather", "parameters": [], "strict": True}],
    [{"type": "custom", "name": "a", "format": {"type": "text"}}],
    [{"type": "custom", "name": "a", "format": {"type": "grammar", "syntax": "odd"}}],
    [{"type": "custom", "name": "a", "format": 0}],
    [{"type": "namespace", "name": "n", "tools": [{"type": "custom", "name": "a"}]}],
    [{"type": "namespace", "name": "n", "tools": [{"type": "namespace", "name": "m"}]}],
    [{"type": "web_search", "external_web_access": False}],
    [{"type": "web_search"}],
    {"type": "function", "function": {"name": "weather"}},
    {"type": "function", "name": "weather"},
    {"type": "tool", "name": "weather"},
    {"type": "tool"},
    {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [FUNCTION]}},
    {"type": "allowed_tools", "allowed_tools": {"mode": "odd", "tools": [FUNCTION]}},
    {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "weather"}]},
    {"type": "auto", "disable_parallel_tool_use": True},
    {"type": "auto", "disable_parallel_tool_use": 1},
    USER,
    [{"role": "odd", "content": "it was"}],
    [{"role": "user"}],
    [{"role": "user", "content": 1}],
    [{"role": "user", "content": [{"type": "text", "text": "it"}]}],
    [{"role": "user", "content": [{"type": "text", "text": 1}]}],
    [{"role": "user", "content": [{"type": "image"}]}],
    [{"role": "user", "content": [{"type": "text", "text": "it", "citations": [1]}]}],
    [{"role": "user", "content": [{"type": "text", "text": "it", "citations": 0}]}],
    [{"role": "user", "content": [{"type": "text", "text": "it", "cache_control": 1}]}],
    [{"role": "user", "content": "it was", "tool_calls": [{"function": {"name": "a"}}]}],
    [{"role": "user", "content": "it was", "tool_calls": 0}],
    [*USER, {"role": "assistant", "tool_calls": [{"function": {"name": "a"}}]}, {"role": "tool"}],
    [*USER, {"role": "assistant", "tool_calls": [{"function": {"name": 1}}]}, *USER],
    [*USER, {"role": "assistant", "tool_calls": [{"function": {"name": "a", "arguments": 0}}]}],
    [*USER, {"role": "assistant", "content": "a", "reasoning": 1, "reasoning_content": "b"}, *USER],
    [*USER, {"role": "assistant", "content": [{"type": "tool_use", "name": "a", "input": 1}]}],
    [{"type": "message", "role": "user", "content": "it was"}],
    [{"type": "", "role": "user", "content": "it was"}],
    [{"type": "function_call", "name": "a", "arguments": 1}],
    [{"type": "function_call_output", "output": {"a": 1}}, *USER],
    [{"type": "reasoning", "summary": 1}],
    [{"type": "odd"}],
    ["it was", "it"],
    [[5, 6], "it was"],
    [5, 6, 7],
    [5, "a"],
]

Read = Callable[[ServedModel, web.Request, RequestFields], object]


def readers() -> Mapping[str, Read]:
    store = ResponseStore(lambda: 0.0, 1 << 20, 0, 1.0)

    def of_store(read: Callable[..., object]) -> Read:
        return lambda model, request, fields: read(model, store, request, fields)

    return {
        CHATS: read_chat,
        COMPLETIONS: read_completion,
        MESSAGES: read_message_request,
        COUNTS: count_message_tokens,
        RESPONSES: of_store(read_response_request),
        INPUT_TOKENS: of_store(count_response_tokens),
        COMPACT: of_store(read_compact_request),
        "/tokenize": tokenized,
        "/detokenize": lambda model, _, fields: detokenized(model.codec, fields),
    }


READERS = readers()
# Text allowed in the complaint about a value of the right shape, by field.
RULES: Mapping[str, str] = {
    "best_of": "beside n",
    "max_tokens": "behind a prompt of",
    "max_completion_tokens": "behind a prompt of",
    "min_tokens": "the most tokens of the answer",
    "continue_final_message": "needs ",
    "previous_response_id": "is not stored here",
    "conversation": "is not stored here",
    "input": "is empty",
    "allowed_token_ids": "outside",
}
# Complaints about the text inside a field, for every field: no schema covers this text.
TEXTS_OF_GRAMMARS = (
    "is not supported here",
    "is not JSON",
    "must be a JSON schema",
    "must be an object",
    "cannot be followed",
)
# Complaints about a field in an object, without the object's name.
OF_A_PART = (
    "type must be a string",
    "effort must be a string",
    "disable_parallel_tool_use must be true or false",
)


@pytest.fixture(scope="module")
def model(codec: TextCodec) -> ServedModel:
    return ServedModel("tiny", 0, 1 << 15, agent_codec(codec))


@cache
def request_to(path: str) -> web.Request:
    """Return one mocked request for all bodies: making it costs more than reading a body."""
    request = make_mocked_request("POST", path, app=Mock())
    rename_request(request, RequestId("a"))
    return request


def refusal(model: ServedModel, path: str, body: dict[str, Any]) -> str | None:
    """Return the reader's complaint, or None if there is none."""
    try:
        fields = RequestFields(body)
        model.named(fields.text("model"))
        READERS[path](model, request_to(path), fields)
    except (InvalidRequest, HttpRefusal) as error:
        return str(error)
    return None


def body_of(path: str, name: str, value: Any) -> dict[str, Any]:
    beside = BESIDE.get(path, {}).get(name, {})
    return {**TABLES[path][2], **beside, name: value}


def values_for(schema: Schema) -> list[Any]:
    """Return values to try. A few suffice for an ignored field, and plain ones for a number or a
    text."""
    if not schema:
        return PLAIN[::5]
    shaped = {"anyOf", "items", "properties", "enum"} & schema.keys()
    return [*PLAIN, *SHAPED] if shaped else PLAIN


@pytest.mark.parametrize("path", TABLES)
def test_a_reader_refuses_what_the_schema_refuses(model: ServedModel, path: str) -> None:
    fields, schema, _ = TABLES[path]
    assert schema.get("properties", fields) == fields
    faults = [fault for name in fields for fault in reader_faults(model, path, name)]
    assert not faults, "\n".join(faults)


def reader_faults(model: ServedModel, path: str, name: str) -> Iterator[str]:
    """Yield a text for each value judged differently by a field's schema and its reader. Yield one
    more if no value is taken."""
    schema = TABLES[path][0][name]
    validator = jsonschema.Draft202012Validator({"type": "object", "properties": {name: schema}})
    taken = 0
    for value in values_for(schema):
        body = body_of(path, name, value)
        complaint = refusal(model, path, body)
        if not validator.is_valid(body):
            if complaint is None:
                yield f"{name}: {value!r} is taken"
            elif not complaint.startswith(name) and complaint not in OF_A_PART:
                yield f"{name}: {value!r} is refused by another name: {complaint}"
        elif complaint is None:
            taken += 1
        elif not is_of_another_rule(name, value, complaint):
            yield f"{name}: {value!r} is refused: {complaint}"
    if not taken:
        yield f"{name}: no value is taken"


def is_of_another_rule(name: str, value: Any, complaint: str) -> bool:
    """Return true if the complaint is of another rule: a value of the right shape may then be
    refused."""
    if name == "model":
        return "is not served here" in complaint
    if isinstance(value, str | dict) and any(text in complaint for text in TEXTS_OF_GRAMMARS):
        return name in FORMATS
    return RULES.get(name, "\0") in complaint


def test_required_fields_are_missed(model: ServedModel) -> None:
    for path, (_, schema, base) in TABLES.items():
        assert refusal(model, path, base) is None
        assert not jsonschema.Draft202012Validator(dict(schema)).is_valid({})
        assert refusal(model, path, {}) is not None


@pytest.mark.parametrize("path", [MESSAGES, COUNTS, RESPONSES, INPUT_TOKENS])
def test_unknown_fields_are_refused_as_the_schema_says(model: ServedModel, path: str) -> None:
    _, schema, base = TABLES[path]
    validator = jsonschema.Draft202012Validator(dict(schema))
    for value, is_taken in ((1, False), (None, True)):
        body = {**base, "temprature": value}
        assert validator.is_valid(body) is is_taken
        assert (refusal(model, path, body) is None) is is_taken


def called_with(arguments: object) -> dict[str, Any]:
    """Return a chat with a tool call with these arguments."""
    call = {"function": {"name": "f", "arguments": arguments}}
    return {"messages": [{"role": "assistant", "tool_calls": [call]}]}


def asked(content: object, role: object = "user") -> dict[str, Any]:
    return {"messages": [{"role": role, "content": content}]}


def item(**fields: Any) -> dict[str, Any]:
    return {"input": [fields]}


def formatted(**fields: Any) -> dict[str, Any]:
    return {"text": {"format": fields}}


FLAT = {"type": "function", "name": "weather"}
TOOL = {"name": "weather", "input_schema": PARAMETERS}
IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": ""}}
ANSWER = {"role": "assistant", "content": "so"}
CACHED = {"type": "text", "text": "x", "cache_control": {"type": "ephemeral"}}
# Fields by path, and the start of the complaint.
PLACES: Mapping[str, list[tuple[dict[str, Any], str]]] = {
    CHATS: [
        ({"messages": [1]}, "messages[0] "),
        ({"messages": [{"role": "user"}]}, "messages[0].content "),
        (asked([{"type": "image_url"}]), "messages[0].content[0] "),
        ({"messages": [{**USER[0], "tool_calls": [{}]}]}, "messages[0].tool_calls "),
        (called_with(["a"]), "messages[0].tool_calls[0].function.arguments "),
        (called_with("[" + "1," * (1 << 20)), "messages[0].tool_calls[0].function.arguments "),
        (
            {"messages": [{"role": "assistant", "reasoning_content": 5}]},
            "messages[0].reasoning_content ",
        ),
        ({"messages": [{"role": "assistant", "reasoning": ["a"]}]}, "messages[0].reasoning "),
        ({"messages": [*USER, {"role": "root", "content": "x"}]}, "messages[1].role "),
        ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs.messages "),
        ({"chat_template_kwargs": {"tools": []}}, "chat_template_kwargs.tools "),
        ({"logit_bias": {"320": 1}}, "logit_bias "),
        ({"min_tokens": 6, "max_tokens": 5}, "min_tokens "),
        ({"allowed_token_ids": [320]}, "allowed_token_ids "),
        ({"top_logprobs": 5}, "top_logprobs needs"),
        ({"response_format": {"type": "yaml"}}, "response_format.type "),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema "),
        ({"response_format": {"type": "structural_tag", "format": 5}}, "response_format.format "),
        ({"guided_json": "{"}, "guided_json "),
        ({"guided_json": 5}, "guided_json "),
        ({"guided_choice": ["a"] * 4097}, "guided_choice "),
        ({"regex": "a" * (1 + (256 << 10))}, "regex "),
        ({"regex": "a", "guided_json": {}}, "regex "),
        ({"structured_outputs": {"regex": "a", "json": {}}}, "structured_outputs.json "),
        (
            {"structured_outputs": {"structural_tag": "{}"}},
            "structured_outputs.structural_tag ",
        ),
        ({"tools": [1]}, "tools[0] "),
        ({"tools": [{}]}, "tools[0].function "),
        ({"tools": [{**FUNCTION, "type": "custom"}]}, "tools[0] "),
        ({"tool_choice": "required"}, "tool_choice "),
        (
            {
                "tools": [FUNCTION],
                "tool_choice": {"type": "function", "function": {"name": "no"}},
            },
            "tool_choice names",
        ),
        ({"thinking": {"type": "deep"}}, "thinking.type "),
        ({"thinking": {"type": "enabled", "budget_tokens": 0}}, "thinking.budget_tokens "),
        ({"thinking": {"type": "enabled", "keep": 9}}, "thinking.keep "),
        ({"thinking_token_budget": 5, "thinking_budget": 6}, "thinking_budget "),
        ({"thinking_budget": 5, "thinking": {"budget_tokens": 2000}}, "thinking.budget_tokens "),
        ({"metadata": {"a": "x" * 513}}, "metadata.a "),
        ({"metadata": {"x-session-id": 5}}, "metadata.x-session-id "),
        ({"n": 2, "best_of": 3}, "best_of "),
        ({"n": 3, "best_of": 1}, "best_of "),
        ({"prediction": {"type": "content"}}, "prediction.content "),
        ({"prediction": {"type": "else", "content": "x"}}, "prediction.type "),
        (
            {"prediction": {"type": "content", "content": [{"type": "image_url"}]}},
            "prediction.content[0] ",
        ),
        ({"prediction": {"type": "content", "content": "fine " * 100_000}}, "prediction"),
        ({"stream": True, "stream_options": {"usage": True}}, "stream_options.usage "),
        (
            {"stream": True, "stream_options": {"include_usage": 1}},
            "stream_options.include_usage ",
        ),
        ({"stream_options": {"include_usage": True}}, "stream_options needs"),
        ({"stream": False, "stream_options": {"include_usage": False}}, "stream_options needs"),
        ({"prompt_logprobs": 1, "stream": True}, "prompt_logprobs "),
    ],
    COMPLETIONS: [
        ({"best_of": 3}, "best_of "),
        ({"n": 2, "best_of": 3}, "best_of "),
        ({"n": 3, "best_of": 1}, "best_of "),
        ({"prompt_logprobs": 1, "stream": True}, "prompt_logprobs "),
        ({"prompt": [[5] * 500] * 100, "prompt_logprobs": 20}, "prompt "),
        ({"stream": True, "stream_options": {"usage": True}}, "stream_options.usage "),
        ({"stream_options": {"include_usage": True}}, "stream_options needs"),
    ],
    MESSAGES: [
        (asked("x", "tool"), "messages[0] "),
        (asked("x", {}), "messages[0] "),
        (asked("x", []), "messages[0] "),
        (asked([{"type": {}}]), "messages[0].content[0] "),
        (asked(3), "messages[0].content "),
        (asked([IMAGE]), "messages[0].content[0] "),
        ({"messages": [*USER, ANSWER]}, "messages must not end"),
        (
            {"messages": [*USER, {"role": "assistant", "content": [IMAGE]}, *USER]},
            "messages[1].content[0] ",
        ),
        ({"system": [IMAGE]}, "system[0] "),
        ({"system": [CACHED] * 5}, "cache_control is in 5 blocks: a maximum of 4"),
        ({"tools": [{**TOOL, "type": {}}]}, "tools[0].type "),
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "tools[0].type "),
        ({"tools": [{**TOOL, "strict": "yes"}]}, "tools[0].strict "),
        ({"tools": [{**TOOL, "defer_loading": True}]}, "tools[0].defer_loading "),
        ({"tools": [{"name": "x"}]}, "tools[0].input_schema "),
        ({"tool_choice": {"type": "any"}}, "tool_choice "),
        ({"tools": [TOOL], "tool_choice": {"type": "tool", "name": "none"}}, "tool_choice names"),
        ({"thinking": {"type": "enabled", "budget_tokens": 0}}, "thinking.budget_tokens "),
        ({"thinking": {"type": "deep"}}, "thinking.type "),
        ({"thinking": {"type": "adaptive", "display": "all"}}, "thinking.display "),
        ({"output_config": {"effort": "huge"}}, "output_config.effort "),
        ({"output_config": {"format": {"type": "json_schema"}}}, "output_config.format "),
        ({"output_config": {"task_budget": {}}}, "output_config.task_budget "),
        (
            {"context_management": {"edits": [{"type": "clear_tool_uses_20250919"}]}},
            "context_management.edits[0] ",
        ),
        ({"cache_control": {"type": []}}, "cache_control "),
        ({"mcp_servers": [{}]}, "mcp_servers "),
        ({"guided_json": {}}, "guided_json "),
    ],
    RESPONSES: [
        ({"input": [3]}, "input[0] "),
        (item(type="item_reference", id="x"), "input[0].id "),
        (item(role="tool", content="x"), "input[0].role "),
        (
            item(role="user", content=[{"type": "input_image", "image_url": "data:"}]),
            "input[0].content[0] ",
        ),
        ({"input": [ANSWER]}, "input must not end"),
        (item(type="function_call", name="x"), "input[0].arguments "),
        (item(type="function_call", arguments="{}"), "input[0].name "),
        ({"tools": [{"type": "file_search"}]}, "tools[0].type "),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type "),
        ({"tools": [{"type": "function"}]}, "tools[0] "),
        ({"tools": [{**FLAT, "defer_loading": True}]}, "tools[0].defer_loading "),
        ({"tools": [FLAT], "tool_choice": {"type": "function", "name": "none"}}, "tool_choice "),
        (formatted(type="json_schema"), "text.format.json_schema "),
        (formatted(type="yaml"), "text.format.type "),
        ({"text": {"verbosity": "low"}}, "text.verbosity "),
        ({"background": True, "store": False}, "store "),
        ({"reasoning": {"context": "some"}}, "reasoning.context "),
        ({"reasoning": {"effort": "x" * 65}}, "reasoning.effort "),
        ({"metadata": {str(number): "x" for number in range(17)}}, "metadata has 17 pairs"),
        ({"metadata": {"x" * 65: "x"}}, "metadata has a name of 65"),
        ({"metadata": {"a": "x" * 513}}, "metadata.a "),
        ({"metadata": {"a": {"b": "c"}}}, "metadata.a "),
        ({"prompt": {"id": "p"}}, "prompt "),
        ({"moderation": {}}, "moderation "),
        ({"guided_json": {}}, "guided_json "),
    ],
    COMPACT: [
        ({"stream": True}, "stream "),
        ({"max_output_tokens": 7}, "max_output_tokens "),
        ({"tools": [7]}, "tools[0] "),
    ],
}


@pytest.mark.parametrize("path", PLACES)
def test_what_no_schema_says_is_refused_by_its_place(model: ServedModel, path: str) -> None:
    faults = []
    for fields, beginning in PLACES[path]:
        complaint = refusal(model, path, {**TABLES[path][2], **fields})
        if complaint is None or not complaint.startswith(beginning):
            faults.append(f"{str(fields)[:200]}: {complaint}")
    assert not faults, "\n".join(faults)
