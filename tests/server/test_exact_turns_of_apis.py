"""A turn that comes back over Messages or Responses, or is gone on from by its id, resumes at its
exact end: over HTTP with a real engine, by each published Qwen template."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.harness.dictated_node import (
    DictatedNode,
    dictated_node,
    template_names,
    template_source,
)

SCHEMA = {"type": "object", "properties": {"path": {"type": "string"}}}
TURNS = 4


@pytest.fixture(scope="module", params=template_names())
def template(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture(scope="module")
def node(template: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[DictatedNode]:
    folder = tmp_path_factory.mktemp(template)
    with dictated_node(folder, template_source(template)) as running:
        yield running


def thought(template: str, turn: int) -> str:
    if template == "qwen3":
        return f"<think>\nNow {turn}.\n</think>\n\n"
    return "" if template == "qwen3_5_nothink" else f"Now {turn}.\n</think>\n\n"


def call(template: str, path: str) -> str:
    if template == "qwen3":
        return f'<tool_call>\n{{"name": "look", "arguments": {{"path": "{path}"}}}}\n</tool_call>'
    return (
        f"<tool_call>\n<function=look>\n<parameter=path>\n{path}\n</parameter>\n"
        "</function>\n</tool_call>"
    )


class Ends:
    """exact: for each turn but the first, whether it resumed at the end of the one before: all of
    its tokens but the very last, which was drawn and not computed."""

    def __init__(self) -> None:
        self.exact: list[bool] = []
        self._before: int | None = None

    def add(self, cached: int, prompt: int, answer: int) -> None:
        if self._before is not None:
            self.exact.append(cached == self._before - 1)
        self._before = prompt + answer


@pytest.mark.parametrize("display", ["summarized", "omitted"])
def test_a_message_that_comes_back(node: DictatedNode, template: str, display: str) -> None:
    tool = {"name": "look", "input_schema": SCHEMA}
    fields = {
        "tools": [tool],
        "temperature": 0,
        "max_tokens": 200,
        "cache_salt": display,
        "output_config": {"effort": "high"},
    }
    if template != "qwen3_5_nothink":
        fields["thinking"] = {"type": "adaptive", "display": display}
    messages: list[dict[str, Any]] = [{"role": "user", "content": "What is in the file?"}]
    ends = Ends()
    for turn in range(TURNS):
        body = {**fields, "messages": messages}
        counted = node.post("/v1/messages/count_tokens", body).json["input_tokens"]
        node.dictate_behind(counted, thought(template, turn) + call(template, f"a{turn}"))
        told = node.post("/v1/messages", body).json
        assert told["stop_reason"] == "tool_use"
        usage = told["usage"]
        cached = usage["cache_read_input_tokens"]
        assert usage["input_tokens"] + cached == counted
        ends.add(cached, counted, usage["output_tokens"])
        use = told["content"][-1]
        result = {"type": "tool_result", "tool_use_id": use["id"], "content": f"line {turn}"}
        messages += [
            {"role": "assistant", "content": told["content"]},
            {"role": "user", "content": [result]},
        ]
    assert ends.exact == [True] * (TURNS - 1)


def responded(node: DictatedNode, body: dict[str, Any], text: str) -> dict[str, Any]:
    probe = {**body, "cache_salt": "probe", "max_output_tokens": 1, "store": False}
    usage = node.post("/v1/responses", probe).json["usage"]
    node.dictate_behind(usage["input_tokens"], text)
    reply = node.post("/v1/responses", body)
    assert reply.status == 200, reply
    told: dict[str, Any] = reply.json
    assert told["usage"]["input_tokens"] == usage["input_tokens"]
    return told


@pytest.mark.parametrize("by_id", [False, True])
def test_a_response_that_is_gone_on_from(node: DictatedNode, template: str, by_id: bool) -> None:
    tool = {"type": "function", "name": "look", "parameters": SCHEMA}
    fields = {
        "tools": [tool],
        "temperature": 0,
        "max_output_tokens": 200,
        "instructions": "Be brief.",
        "cache_salt": f"by id {by_id}",
        "reasoning": {"effort": "high"},
    }
    given: list[dict[str, Any]] = [{"role": "user", "content": "What is in the file?"}]
    name: str | None = None
    ends = Ends()
    for turn in range(TURNS):
        body = {**fields, "input": given, "previous_response_id": name, "store": by_id}
        told = responded(node, body, thought(template, turn) + call(template, f"a{turn}"))
        usage = told["usage"]
        cached = usage["input_tokens_details"]["cached_tokens"]
        ends.add(cached, usage["input_tokens"], usage["output_tokens"])
        call_id = told["output"][-1]["call_id"]
        result = {"type": "function_call_output", "call_id": call_id, "output": f"line {turn}"}
        name = told["id"] if by_id else None
        given = [result] if by_id else [*given, *told["output"], result]
    assert ends.exact == [True] * (TURNS - 1)


def test_a_new_question_behind_a_stored_response(node: DictatedNode, template: str) -> None:
    """Also where the template, given the whole conversation, would drop what was thought."""
    fields = {"temperature": 0, "max_output_tokens": 200, "cache_salt": "questions"}
    name: str | None = None
    ends = Ends()
    for turn in range(TURNS):
        body = {**fields, "input": f"What is {turn}?", "previous_response_id": name}
        told = responded(node, body, f"{thought(template, turn)}It is {turn}.")
        usage = told["usage"]
        cached = usage["input_tokens_details"]["cached_tokens"]
        ends.add(cached, usage["input_tokens"], usage["output_tokens"])
        name = told["id"]
    assert ends.exact == [True] * (TURNS - 1)
