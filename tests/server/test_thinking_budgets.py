"""Tests of thinking budgets over HTTP, with a real engine: the thought's length, its closing, and
the reply's report of it."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tasuki.engine.messages import Tokens
from tasuki.model.ops.sampling.params import SamplingParams
from tasuki.model.ops.sampling.thinking_budget import ThinkingBudget
from tasuki.proto import inference_pb2 as pb
from tasuki.server.errors import InvalidField
from tasuki.server.grpc.generate_messages import with_text_rules
from tasuki.server.text.text_codec import TextCodec
from tests.harness.dictated_node import (
    DictatedNode,
    dictated_node,
    template_source,
    write_text_files,
)
from tests.harness.http_calls import Reply

CHATS, MESSAGES, COMPLETIONS = "/v1/chat/completions", "/v1/messages", "/v1/completions"
SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "integer", "minimum": 0, "maximum": 9}},
    "required": ["a"],
    "additionalProperties": False,
}
# The model's random tokens contain no tags.
BODY: dict[str, Any] = {
    "messages": [{"role": "user", "content": "Where does Elizabeth live?"}],
    "temperature": 30.0,
    "ignore_eos": True,
    "seed": 3,
    "max_tokens": 60,
    "return_token_ids": True,
}


@pytest.fixture(scope="module", params=["qwen3", "qwen3_5_think", "qwen3_8"])
def node(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    folder = tmp_path_factory.mktemp("checkpoint")
    with dictated_node(folder, template_source(request.param)) as running:
        yield running


@pytest.fixture
def opens(node: DictatedNode) -> bool:
    """Return true if the model opens its thought itself; dictate that opening then."""
    asked = {"messages": BODY["messages"]}
    tokens = node.prompt(asked)
    opening = node.tokenizer.added_tokens["<think>"]
    node.dictation.tokens = {}
    if opening in tokens[-3:]:
        return False
    node.dictation.tokens = {len(tokens): opening}
    return True


def closing(node: DictatedNode) -> list[int]:
    return node.tokens_of("\n</think>\n\n")


def choice(reply: Reply) -> dict[str, Any]:
    assert reply.status == 200, reply.body
    found: dict[str, Any] = reply.json["choices"][0]
    return found


def reasoning_tokens(reply: Reply) -> int:
    found: int = reply.json["usage"]["completion_tokens_details"]["reasoning_tokens"]
    return found


@pytest.mark.parametrize("budget", [0, 1, 2, 7, 30])
@pytest.mark.parametrize("field", ["thinking_token_budget", "thinking_budget", "thinking"])
def test_thought_of_a_chat_is_closed_behind_so_many_tokens(
    node: DictatedNode, opens: bool, budget: int, field: str
) -> None:
    asked = {"type": "enabled", "budget_tokens": budget} if field == "thinking" else budget
    if asked == {"type": "enabled", "budget_tokens": 0}:
        assert node.post(CHATS, {**BODY, field: asked}).error["param"] == "thinking.budget_tokens"
        return
    if field == "thinking" and not opens:
        # A small budget also sets an effort, so the prompt differs.
        node.dictation.tokens = {}
    reply = node.post(CHATS, {**BODY, field: asked})
    tokens = choice(reply)["token_ids"]
    begins = 1 if opens else 0
    assert tokens[begins + budget :][: len(closing(node))] == closing(node)
    assert reasoning_tokens(reply) == budget
    message = choice(reply)["message"]
    assert "</think>" not in (message["content"] or "") + (message["reasoning_content"] or "")
    assert reply.json["usage"]["completion_tokens"] == len(tokens) == 60


def test_stream_has_the_same_thought_and_answer(node: DictatedNode, opens: bool) -> None:
    body = {**BODY, "thinking_token_budget": 9}
    message = choice(node.post(CHATS, body))["message"]
    events = node.post(CHATS, {**body, "stream": True}).events
    deltas = [event["choices"][0]["delta"] for event in events if event["choices"]]
    for name in ("reasoning_content", "content"):
        assert "".join(delta.get(name) or "" for delta in deltas) == (message[name] or "")


def test_budget_that_the_answer_does_not_reach_changes_nothing(
    node: DictatedNode, opens: bool
) -> None:
    plain = node.post(CHATS, {**BODY, "max_tokens": 20})
    bounded = node.post(CHATS, {**BODY, "max_tokens": 20, "thinking_token_budget": 5000})
    assert choice(plain)["token_ids"] == choice(bounded)["token_ids"]
    assert choice(bounded)["finish_reason"] == "length"
    free = node.post(CHATS, {**BODY, "max_tokens": 20, "thinking_token_budget": -1})
    assert choice(free)["token_ids"] == choice(plain)["token_ids"]


def test_thought_that_the_model_closes_itself_stays_as_it_is(
    node: DictatedNode, opens: bool
) -> None:
    asked = {"messages": BODY["messages"]}
    begin = "<think>\n" if opens else ""
    node.dictate(asked, f"{begin}I know.\n</think>\n\nAt Longbourn.")
    reply = node.post(CHATS, {**BODY, "thinking_token_budget": 40, "ignore_eos": False})
    message = choice(reply)["message"]
    assert message["reasoning_content"] == "I know."
    assert (message["content"], choice(reply)["finish_reason"]) == ("At Longbourn.", "stop")


def test_schema_holds_behind_the_forced_end(node: DictatedNode, opens: bool) -> None:
    body = {**BODY, "ignore_eos": False}
    form = {"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA}}
    reply = node.post(CHATS, {**body, "thinking_token_budget": 6, "response_format": form})
    assert choice(reply)["finish_reason"] == "stop"
    assert set(json.loads(choice(reply)["message"]["content"])) == {"a"}
    assert reasoning_tokens(reply) == 6


def test_messages_have_budgets_by_anthropics_name(node: DictatedNode, opens: bool) -> None:
    node.dictation.tokens = {}
    body = {"messages": BODY["messages"], "max_tokens": 60, "temperature": 1.0, "top_k": 400}
    for budget in (1, 8):
        thinking = {"type": "enabled", "budget_tokens": budget}
        if opens:
            tokens = node.prompt({"messages": BODY["messages"], "enable_thinking": True})
            opening = node.tokenizer.added_tokens["<think>"]
            node.dictation.tokens = {len(tokens): opening}
        reply = node.post(MESSAGES, {**body, "thinking": thinking})
        assert reply.status == 200, reply.body
        assert reply.json["usage"]["output_tokens_details"]["thinking_tokens"] == budget


def test_completion_behind_an_open_thought_is_bounded(node: DictatedNode, opens: bool) -> None:
    node.dictation.tokens = {}
    fields = {key: value for key, value in BODY.items() if key != "messages"}
    body = {**fields, "thinking_token_budget": 5}
    tokens = node.tokens_of("Where? <think>\n")
    answer = choice(node.post(COMPLETIONS, {**body, "prompt": tokens}))["token_ids"]
    assert answer[5:][: len(closing(node))] == closing(node)
    plain = node.tokens_of("Where?")
    answer = choice(node.post(COMPLETIONS, {**body, "prompt": plain}))["token_ids"]
    assert answer[5:][: len(closing(node))] != closing(node)


def test_responses_have_budgets(node: DictatedNode, opens: bool) -> None:
    asked = {
        "input": "Where does Elizabeth live?",
        "temperature": 30.0,
        "ignore_eos": True,
        "max_output_tokens": 60,
        "store": False,
        "thinking_token_budget": 7,
    }
    reply = node.post("/v1/responses", asked).json
    assert reply["usage"]["output_tokens_details"]["reasoning_tokens"] == 7
    assert reply["output"][0]["type"] == "reasoning"


def test_answer_without_thinking_has_no_budget(node: DictatedNode, opens: bool) -> None:
    node.dictation.tokens = {}
    off = {**BODY, "enable_thinking": False}
    plain = choice(node.post(CHATS, off))["token_ids"]
    assert choice(node.post(CHATS, {**off, "thinking_token_budget": 3}))["token_ids"] == plain


def test_grpc_takes_the_budget_of_a_prompt_that_opens_a_thought(tmp_path: Path) -> None:
    write_text_files(tmp_path, template_source("qwen3_8"))
    codec = TextCodec.load(tmp_path, 2048, 1 << 14)
    tokenizer = codec.require_tokenizer()
    tags = [tokenizer.added_tokens[tag] for tag in ("<think>", "</think>")]
    opened = np.array([*tokenizer.encode("Where? "), tags[0]], dtype=np.int32)

    def params(prompt: Tokens, **fields: int) -> SamplingParams:
        sampling = pb.Sampling(**fields)  # type: ignore[arg-type]
        return asyncio.run(with_text_rules(SamplingParams(), sampling, prompt, codec, ""))

    closing = (*tokenizer.encode("\n"), tags[1], *tokenizer.encode("\n\n"))
    wanted = ThinkingBudget(5, closing, tags[1])
    assert params(opened, thinking_token_budget=5).thinking == wanted
    assert params(opened).thinking is None
    assert params(opened[:-1], thinking_token_budget=5).thinking is None
    with pytest.raises(InvalidField, match=r"^sampling.thinking_token_budget must have a budget"):
        params(opened, thinking_token_budget=-1)
