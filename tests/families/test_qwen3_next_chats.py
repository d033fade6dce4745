"""Chats with Qwen3-Next over HTTP: the calls of its Instruct models are JSON, those of Coder-Next
tags, and the Thinking models' template opens the thought."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.harness.dictated_node import TEMPLATES, DictatedNode, dictated_node, template_source
from tests.harness.http_calls import Reply
from tests.harness.model_shapes import next_raw

CHATS = "/v1/chat/completions"
INSTRUCT = (TEMPLATES / "plain" / "qwen3_instruct_2507.jinja").read_text(encoding="utf-8")
_OPENING = "{{- '<|im_start|>assistant\\n' }}"
THINKING = INSTRUCT.replace(_OPENING, "{{- '<|im_start|>assistant\\n<think>\\n' }}")
"""The Thinking models' prompt for an answer, with the turns of the Instruct models."""
JSON_CALL = (
    '<tool_call>\n{"name": "weather", "arguments": {"city": "Bath", "days": 2}}\n</tool_call>'
)
TAGGED_CALL = (
    "<tool_call>\n<function=weather>\n<parameter=city>\nBath\n</parameter>\n<parameter=days>\n2\n"
    "</parameter>\n</function>\n</tool_call>"
)
TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
            "required": ["city", "days"],
        },
    },
}
BODY: dict[str, Any] = {
    "messages": [{"role": "user", "content": "Where does Elizabeth live?"}],
    "max_tokens": 200,
}


@pytest.fixture(scope="module")
def node(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    folder = tmp_path_factory.mktemp("checkpoint")
    with dictated_node(folder, request.param, next_raw()) as running:
        yield running


def of(*templates: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("node", templates, indirect=True)


def answered(node: DictatedNode, body: dict[str, Any], text: str) -> dict[str, Any]:
    """Return the message of a dictated answer, the same whole and streamed."""
    node.dictate(body, text)
    reply: Reply = node.post(CHATS, body)
    assert reply.status == 200, reply.body
    choice = reply.json["choices"][0]
    events = node.post(CHATS, {**body, "stream": True}).events
    deltas = [event["choices"][0]["delta"] for event in events if event["choices"]]
    for name in ("content", "reasoning_content"):
        streamed = "".join(delta.get(name) or "" for delta in deltas)
        assert streamed == (choice["message"].get(name) or "")
    message: dict[str, Any] = {**choice["message"], "finish_reason": choice["finish_reason"]}
    return message


def called(message: dict[str, Any]) -> None:
    (call,) = message["tool_calls"]
    assert call["function"]["name"] == "weather"
    assert json.loads(call["function"]["arguments"]) == {"city": "Bath", "days": 2}
    assert message["finish_reason"] == "tool_calls"


@of(INSTRUCT)
def test_an_instruct_model_answers_without_a_thought(node: DictatedNode) -> None:
    message = answered(node, BODY, "In Longbourn.")
    assert message["content"] == "In Longbourn." and message["finish_reason"] == "stop"
    assert not message.get("reasoning_content")


@of(INSTRUCT, template_source("qwen3_5_nothink"))
def test_calls_are_read_in_the_form_of_the_template(node: DictatedNode) -> None:
    prompt = node.post("/tokenize", {**BODY, "tools": [TOOL]}).json["tokens"]
    is_tagged = "<function=" in node.tokenizer.decode(prompt)
    text = TAGGED_CALL if is_tagged else JSON_CALL
    called(answered(node, {**BODY, "tools": [TOOL]}, text))


@of(INSTRUCT, template_source("qwen3_5_nothink"))
def test_a_forced_call_is_written_in_the_form_of_the_template(node: DictatedNode) -> None:
    body = {**BODY, "tools": [TOOL], "tool_choice": "required", "temperature": 0.0}
    node.dictation.tokens = {}
    reply = node.post(CHATS, body)
    assert reply.status == 200, reply.body
    calls = reply.json["choices"][0]["message"]["tool_calls"]
    assert calls and calls[0]["function"]["name"] == "weather"


@of(THINKING)
def test_a_thought_opened_by_the_template_is_apart(node: DictatedNode) -> None:
    message = answered(node, BODY, "Mr Bennet has five daughters.\n</think>\n\nIn Longbourn.")
    assert message["reasoning_content"].strip() == "Mr Bennet has five daughters."
    assert message["content"].strip() == "In Longbourn."
    text = f"Look it up.\n</think>\n\n{JSON_CALL}"
    with_call = answered(node, {**BODY, "tools": [TOOL]}, text)
    assert with_call["reasoning_content"].strip() == "Look it up."
    called(with_call)


@of(INSTRUCT)
def test_the_next_turn_finds_the_answer_in_the_cache(node: DictatedNode) -> None:
    node.dictate(BODY, "In Longbourn.")
    first = node.post(CHATS, BODY).json
    message = first["choices"][0]["message"]
    turn = [*BODY["messages"], message, {"role": "user", "content": "And Jane?"}]
    second = node.post(CHATS, {**BODY, "messages": turn, "max_tokens": 3}).json
    cached = second["usage"]["prompt_tokens_details"]["cached_tokens"]
    assert cached >= first["usage"]["prompt_tokens"] + first["usage"]["completion_tokens"] - 1
