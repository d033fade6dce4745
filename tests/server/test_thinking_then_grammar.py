"""Tests of a grammar after the model's thinking, with any thought. Published templates open the
thought or let the model open it. The tests run over HTTP with a real engine, whole and streamed."""

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest

from tests.harness.dictated_node import DictatedNode, dictated_node, template_source
from tests.harness.http_calls import Reply

CHAT = "/v1/chat/completions"
SCHEMA = {
    "type": "object",
    "properties": {"city": {"enum": ["Bath", "York"]}, "days": {"enum": [1, 2]}},
    "required": ["city", "days"],
    "additionalProperties": False,
}
TOOL = {"type": "function", "function": {"name": "weather", "parameters": SCHEMA}}
THOUGHT = 'I might say "{" or <tool_call>, or nothing.'
USER = [{"role": "user", "content": "Where?"}]
LONG = 400


@pytest.fixture(scope="module", params=["qwen3", "qwen3_6"])
def template(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture(scope="module")
def node(template: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[DictatedNode]:
    folder = tmp_path_factory.mktemp(template)
    with dictated_node(folder, template_source(template)) as running:
        yield running


def ask(node: DictatedNode, template: str, body: dict[str, Any]) -> Reply:
    """Dictate the model's thought and return the reply. The text after the thought is the model's
    own."""
    opening = "<think>\n" if template == "qwen3" else ""
    tokens = node.tokens_of(f"{opening}{THOUGHT}\n</think>")
    node.dictation.tokens = dict(enumerate(tokens, len(node.prompt(body))))
    reply = node.post(CHAT, {"max_tokens": LONG, "seed": 3, **body})
    assert reply.status == 200, reply
    return reply


@pytest.mark.parametrize("thinks", [True, False])
def test_an_answer_is_json_behind_what_was_thought(
    node: DictatedNode, template: str, thinks: bool
) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA}}
    body: dict[str, Any] = {"messages": USER, "response_format": form, "temperature": 1}
    if thinks:
        message = ask(node, template, body).json["choices"][0]["message"]
        assert message["reasoning_content"] == THOUGHT
    else:
        node.dictation.tokens = {}
        off = {"max_tokens": LONG, "seed": 3, "chat_template_kwargs": {"enable_thinking": False}}
        message = node.post(CHAT, {**body, **off}).json["choices"][0]["message"]
        assert message.get("reasoning_content") is None
    assert json.loads(message["content"]).keys() == {"city", "days"}


@pytest.mark.parametrize(
    "choice", ["required", {"type": "function", "function": {"name": "weather"}}]
)
def test_a_forced_call_is_streamed_behind_what_was_thought(
    node: DictatedNode, template: str, choice: Any
) -> None:
    body = {
        "messages": USER,
        "tools": [TOOL],
        "tool_choice": choice,
        "parallel_tool_calls": False,
        "stream": True,
    }
    reply = ask(node, template, body)
    choices = [event["choices"][0] for event in reply.events if event["choices"]]
    deltas = [choice["delta"] for choice in choices]
    assert "".join(delta.get("reasoning_content") or "" for delta in deltas) == THOUGHT
    calls = [item for delta in deltas for item in delta.get("tool_calls", ())]
    assert calls[0]["function"]["name"] == "weather"
    arguments = json.loads("".join(item["function"].get("arguments", "") for item in calls))
    assert arguments.keys() == SCHEMA["properties"].keys()  # type: ignore[attr-defined]
    assert choices[-1]["finish_reason"] == "tool_calls"
    assert not re.sub(r"\s", "", "".join(delta.get("content") or "" for delta in deltas))


def test_a_strict_tool_is_called_rightly_behind_text_and_thoughts(
    node: DictatedNode, template: str
) -> None:
    """Let the model begin the call; the grammar forces the rest of it."""
    strict = {**TOOL, "function": {**TOOL["function"], "strict": True}}  # type: ignore[dict-item]
    body = {"messages": USER, "tools": [strict]}
    opening = "<think>\n" if template == "qwen3" else ""
    tokens = node.tokens_of(f"{opening}{THOUGHT}\n</think>\n\nI look.\n\n<tool_call>")
    node.dictation.tokens = dict(enumerate(tokens, len(node.prompt(body))))
    told = node.post(CHAT, {"max_tokens": LONG, "seed": 3, "parallel_tool_calls": False, **body})
    message = told.json["choices"][0]["message"]
    assert (message["reasoning_content"], message["content"]) == (THOUGHT, "I look.")
    (call,) = message["tool_calls"]
    assert json.loads(call["function"]["arguments"]).keys() == {"city", "days"}
