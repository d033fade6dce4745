"""Tests of formats not enforced by a grammar. A header of the answer names them, for each API,
streamed or whole. A caller's text in a format cannot break the header."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tasuki.model.grammar.held_schema import MOST_IGNORED_FORMATS, ODD_FORMAT, ignored_formats
from tasuki.server.text.text_codec import TextCodec
from tests.harness.agent_front import AgentFront, running_agent_front

# This template writes a call's arguments as JSON.
TEMPLATE_OF_JSON = Path(__file__).parents[2] / "harness" / "qwen_templates" / "qwen3.jinja"
HEADER = "x-tasuki-ignored-formats"
USER = [{"role": "user", "content": "it was"}]
STRING = {"type": "string"}
SCHEMA = {
    "type": "object",
    "properties": {
        "path": {**STRING, "format": "path"},
        "day": {**STRING, "format": "date"},
        "format": {**STRING, "format": "starts_with", "pattern": "^a"},
        "enum": {"items": {**STRING, "format": "path"}},
    },
}
TAG = {"type": "structural_tag", "format": {"type": "json_schema", "json_schema": SCHEMA}}
FUNCTION: dict[str, Any] = {
    "type": "function",
    "function": {"name": "weather", "parameters": SCHEMA},
}
STRICT = {"type": "function", "function": {**FUNCTION["function"], "strict": True}}
FLAT = {"type": "function", "name": "weather", "parameters": SCHEMA}
TOOL = {"name": "weather", "input_schema": SCHEMA}
FORMAT = {"type": "json_schema", "schema": SCHEMA}
CHAT, MESSAGES, RESPONSES = "/v1/chat/completions", "/v1/messages", "/v1/responses"
COMPLETIONS = "/v1/completions"
BASE: dict[str, dict[str, Any]] = {
    CHAT: {"messages": USER},
    COMPLETIONS: {"prompt": "it was"},
    MESSAGES: {"messages": USER, "max_tokens": 9},
    RESPONSES: {"input": "it was"},
}
OF_FORMATS: list[tuple[str, dict[str, Any]]] = [
    (CHAT, {"response_format": {"type": "json_schema", "json_schema": {"schema": SCHEMA}}}),
    (CHAT, {"response_format": TAG}),
    (CHAT, {"guided_json": SCHEMA}),
    (COMPLETIONS, {"structured_outputs": {"json": SCHEMA}}),
    (COMPLETIONS, {"json_schema": SCHEMA}),
    (RESPONSES, {"text": {"format": {"name": "a", **FORMAT}}}),
    (MESSAGES, {"output_config": {"format": FORMAT}}),
]
OF_TOOLS: list[tuple[str, dict[str, Any]]] = [
    (CHAT, {"tools": [FUNCTION], "tool_choice": "required"}),
    (CHAT, {"tools": [STRICT]}),
    (MESSAGES, {"tools": [TOOL], "tool_choice": {"type": "any"}}),
    (RESPONSES, {"tools": [FLAT], "tool_choice": "required"}),
]
FREE: list[tuple[str, dict[str, Any]]] = [
    (CHAT, {"tools": [FUNCTION]}),
    (MESSAGES, {"tools": [TOOL]}),
    (RESPONSES, {"tools": [FLAT]}),
    (CHAT, {"guided_json": {**STRING, "format": "date"}}),
]


@pytest.fixture(scope="module")
def front_of_json(codec: TextCodec) -> Iterator[AgentFront]:
    with running_agent_front(codec, source=TEMPLATE_OF_JSON.read_text()) as running:
        yield running


def named(front: AgentFront, path: str, **fields: Any) -> str | None:
    reply = front.http.post(path, {**BASE[path], **fields})
    assert reply.status == 200, reply
    found: str | None = reply.headers.get(HEADER)
    return found


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("path", "fields"), OF_FORMATS)
def test_formats_of_an_answer_are_named(
    front: AgentFront, path: str, fields: dict[str, Any], stream: bool
) -> None:
    assert named(front, path, stream=stream, **fields) == "path, starts_with"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("path", "fields"), OF_TOOLS)
def test_formats_of_held_calls_are_named(
    front: AgentFront, front_of_json: AgentFront, path: str, fields: dict[str, Any], stream: bool
) -> None:
    assert named(front_of_json, path, stream=stream, **fields) == "path, starts_with"
    # No string format is enforced between tags.
    assert named(front, path, stream=stream, **fields) == "path, starts_with, date"


@pytest.mark.parametrize(("path", "fields"), FREE)
def test_what_is_not_held_or_wholly_held_is_not_named(
    front: AgentFront, path: str, fields: dict[str, Any]
) -> None:
    assert named(front, path, **fields) is None


def test_formats_of_an_answer_and_of_calls_beside_it_are_named_once(
    front_of_json: AgentFront,
) -> None:
    form = {"type": "json_schema", "json_schema": {"schema": {**STRING, "format": "hex"}}}
    shown = named(front_of_json, CHAT, tools=[FUNCTION], response_format=form)
    assert shown == "hex, path, starts_with"


def test_odd_names_break_no_header(front: AgentFront) -> None:
    odd = ["a\r\nx-evil: 1", "", "a, b", "ä", "\x00", "f" * 65, "a b", "\x7f", "b" * 64]
    schema = {"anyOf": [{**STRING, "format": name} for name in odd]}
    assert named(front, CHAT, guided_json=schema) == f"{ODD_FORMAT}, {'b' * 64}"


def test_at_most_so_many_are_named() -> None:
    schema = {"anyOf": [{**STRING, "format": f"f{number}"} for number in range(40)]}
    assert ignored_formats(schema) == tuple(f"f{number}" for number in range(MOST_IGNORED_FORMATS))


@pytest.mark.parametrize(
    "schema",
    [
        True,
        {"enum": [{"format": "a"}]},
        {"const": {"format": "a"}},
        {"default": {"format": "a"}},
        {"format": 1},
        {"properties": {"format": True}},
    ],
)
def test_values_are_no_formats(schema: Any) -> None:
    assert ignored_formats(schema) == ()
