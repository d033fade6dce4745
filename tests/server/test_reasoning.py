"""Tests of POST /v1/chat/completions with templates that think: the reasoning in an answer, and
template variables set by a request."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from tasuki.engine import messages as m
from tasuki.server.config import ServerConfig
from tasuki.server.openai.messages import read_template_variables
from tasuki.server.openai.request_fields import RequestFields
from tasuki.server.openai.routes import served_model
from tasuki.server.text.chat_message import ChatMessage
from tasuki.server.text.json_reading import read_arguments
from tasuki.server.text.rendering.chat_template import ChatTemplate
from tasuki.server.text.text_answer import Thinking, thinking_behind
from tasuki.server.text.text_codec import TextCodec
from tests.harness.dictated_node import template_names, template_source
from tests.harness.http_calls import Reply
from tests.harness.http_fixtures import HttpFront, running_http

ASK = [ChatMessage("user", "it was")]


@pytest.fixture
def codec(codec: TextCodec) -> TextCodec:
    return with_template(codec, "qwen3_8")


@pytest.fixture
def http(codec: TextCodec) -> Iterator[HttpFront]:
    with running_http(replace(codec, max_tokens=8192)) as running:
        yield running


def with_template(codec: TextCodec, name: str) -> TextCodec:
    return replace(
        codec, template=ChatTemplate(template_source(name), codec.require_tokenizer(), {})
    )


def say(http: HttpFront, codec: TextCodec, text: str, end: bool = True) -> None:
    tokens = [token for letter in text for token in codec.require_tokenizer().encode(letter)]
    http.engine.answer = lambda submit: [*tokens, 2] if end else tokens


def message(reply: Reply) -> dict[str, Any]:
    found: dict[str, Any] = reply.json["choices"][0]["message"]
    return found


def prompt_text(http: HttpFront, codec: TextCodec) -> str:
    return codec.require_tokenizer().decode(http.engine.of(m.Submit)[-1].prompt.tolist())


def test_reasoning_and_answer_come_apart(http: HttpFront, codec: TextCodec) -> None:
    say(http, codec, "so it\n</think>\n\nfine")
    reply = http.chat()
    assert message(reply) == {
        "role": "assistant",
        "content": "fine",
        "reasoning_content": "so it",
        "reasoning": "so it",
    }
    assert reply.json["usage"]["completion_tokens_details"]["reasoning_tokens"] == len(
        "so it\n</think"
    )
    deltas = [event["choices"][0]["delta"] for event in http.chat(stream=True).events]
    told = {
        name: "".join(delta.get(name) or "" for delta in deltas)
        for name in ("content", "reasoning_content", "reasoning")
    }
    assert told == {"content": "fine", "reasoning_content": "so it", "reasoning": "so it"}
    assert not any(delta.get("content") and delta.get("reasoning") for delta in deltas)


def test_an_answer_that_never_ends_its_reasoning_is_reasoning(
    http: HttpFront, codec: TextCodec
) -> None:
    say(http, codec, "so it was", end=False)
    found = message(http.chat())
    assert (found["reasoning"], found["content"]) == ("so it was", None)


@pytest.mark.parametrize("stop", ["it", "</think>", "hi", "\n\n", "ne"])
def test_stop_strings_end_the_answer_and_no_thought(
    http: HttpFront, codec: TextCodec, stop: str
) -> None:
    say(http, codec, "so it\n</think>\n\nfine")
    (choice,) = http.chat(stop=stop).json["choices"]
    shown = choice["message"]
    assert shown["reasoning"] == "so it"
    assert shown["content"] == ("fi" if stop == "ne" else "fine")
    assert choice["finish_reason"] == "stop"
    deltas = [event["choices"][0]["delta"] for event in http.chat(stop=stop, stream=True).events]
    assert "".join(delta.get("content") or "" for delta in deltas) == shown["content"]
    assert "".join(delta.get("reasoning") or "" for delta in deltas) == shown["reasoning"]


def test_a_stop_string_in_the_answer_stops_the_engine(http: HttpFront, codec: TextCodec) -> None:
    say(http, codec, "so it\n</think>\n\nfine and more")
    reply = http.chat(stop="fine", include_stop_str_in_output=True).json
    assert reply["choices"][0]["message"]["content"] == "fine"
    assert reply["usage"]["completion_tokens"] == len("so it\n</think>\n\nfine")


def test_a_node_may_look_for_stop_strings_everywhere(codec: TextCodec) -> None:
    config = ServerConfig(stop_strings="everywhere")
    long = replace(codec, max_tokens=8192)
    with running_http(long, model=served_model("tiny", config, 8192, long)) as http:
        say(http, codec, "so it\n</think>\n\nfine")
        assert message(http.chat(stop="it"))["reasoning"] == "so "
        assert message(http.chat(stop="</think>"))["content"] is None
        assert message(http.chat(stop="ne"))["content"] == "fi"


@pytest.mark.parametrize("closed", [False, True])
def test_a_call_in_a_thought_counts_where_the_thought_never_closes(
    http: HttpFront, codec: TextCodec, closed: bool
) -> None:
    call = "<tool_call>\n<function=look>\n<parameter=a>\nb\n</parameter>\n</function>\n</tool_call>"
    say(http, codec, f"I will look.\n{call}" + ("\n</think>\n\nfine" if closed else ""))
    tools = [{"type": "function", "function": {"name": "look"}}]
    (choice,) = http.chat(tools=tools).json["choices"]
    shown = choice["message"]
    assert choice["finish_reason"] == ("stop" if closed else "tool_calls")
    assert shown["reasoning"] == (f"I will look.\n{call}" if closed else "I will look.")
    assert shown["content"] == ("fine" if closed else None)
    found = [made["function"] for made in shown.get("tool_calls", ())]
    assert found == ([] if closed else [{"name": "look", "arguments": '{"a": "b"}'}])
    events = http.chat(tools=tools, stream=True).events
    deltas = [event["choices"][0]["delta"] for event in events]
    assert "".join(delta.get("reasoning") or "" for delta in deltas) == shown["reasoning"]
    pieces = [delta["tool_calls"][0]["function"] for delta in deltas if "tool_calls" in delta]
    arguments = "".join(piece["arguments"] for piece in pieces)
    assert arguments == ("" if closed else '{"a": "b"}')
    without = message(http.chat())
    assert "tool_calls" not in without and call in without["reasoning"]


def test_reasoning_may_be_left_out_of_the_reply(http: HttpFront, codec: TextCodec) -> None:
    say(http, codec, "so it\n</think>\n\nfine")
    for fields in ({}, {"logprobs": True}):
        reply = http.chat(include_reasoning=False, **fields)
        shown = message(reply)
        assert (shown["content"], shown["reasoning_content"]) == ("fine", None)
        details = reply.json["usage"]["completion_tokens_details"]
        assert details["reasoning_tokens"] == len("so it\n</think")
        events = http.chat(include_reasoning=False, stream=True, **fields).events
        deltas = [event["choices"][0]["delta"] for event in events]
        assert not any("reasoning" in delta or "reasoning_content" in delta for delta in deltas)
        assert "".join(delta.get("content") or "" for delta in deltas) == "fine"


@pytest.mark.parametrize(
    ("fields", "opening"),
    [
        ({}, "xhigh"),
        ({"reasoning_effort": "low"}, "set to low"),
        ({"chat_template_kwargs": {"reasoning_effort": "low"}}, "set to low"),
        ({"reasoning_effort": "medium"}, "user"),
        ({"thinking": {"type": "enabled", "budget_tokens": 1024}}, "set to low"),
        ({"thinking": {"type": "enabled", "budget_tokens": 4096}}, "xhigh"),
        ({"thinking": {"budget_tokens": 1024}, "reasoning_effort": "medium"}, "user"),
        (
            {"reasoning_effort": "low", "chat_template_kwargs": {"reasoning_effort": "medium"}},
            "user",
        ),
    ],
)
def test_the_effort_is_the_template_s(
    http: HttpFront, codec: TextCodec, fields: dict[str, Any], opening: str
) -> None:
    assert http.chat(**fields).status == 200
    text = prompt_text(http, codec)
    assert opening in text.partition("it was")[0] and text.endswith("<think>\n")


@pytest.mark.parametrize(
    "fields",
    [
        {"enable_thinking": False},
        {"chat_template_kwargs": {"enable_thinking": False}},
        {"reasoning_effort": "none"},
        {"thinking": {"type": "disabled"}},
    ],
    ids=str,
)
def test_without_thinking_all_is_content(
    http: HttpFront, codec: TextCodec, fields: dict[str, Any]
) -> None:
    say(http, codec, "fine</think>")
    assert message(http.chat(**fields)) == {
        "role": "assistant",
        "content": "fine</think>",
        "reasoning_content": None,
        "reasoning": None,
    }
    assert prompt_text(http, codec).endswith("<think>\n\n</think>\n\n")


@pytest.mark.parametrize("cleared", [True, False])
def test_what_is_kept_of_thinking_has_two_names(cleared: bool) -> None:
    """Read the inverse name used by GLM's clients."""
    asked = RequestFields({"thinking": {"type": "auto", "clear_thinking": cleared}})
    assert read_template_variables(asked) == {"preserve_thinking": not cleared}


def test_what_a_template_refuses_is_refused_with_its_words(http: HttpFront) -> None:
    reply = http.chat(reasoning_effort="minimal")
    assert reply.status == 400 and "Unexpected reasoning effort minimal" in reply.error["message"]
    assert http.chat(chat_template_kwargs={"raise_exception": 1, "namespace": []}).status == 400


@pytest.mark.parametrize("name", ["reasoning_content", "reasoning"])
def test_reasoning_of_the_history_reaches_the_template(
    http: HttpFront, codec: TextCodec, name: str
) -> None:
    turn = {"role": "assistant", "content": "fine", name: "so<|im_end|>"}
    ask = {"role": "user", "content": "it was"}
    kept = {"messages": [ask, turn, ask]}
    counts = []
    for fields in ({}, {"preserve_thinking": True}, {"preserve_thinking": False}):
        assert http.post("/v1/chat/completions", {**kept, **fields}).status == 200
        shown = "<think>\nso<|im_end|>\n</think>\n\nfine\n" in prompt_text(http, codec)
        assert shown == (fields != {"preserve_thinking": False})
        counts.append(http.post("/tokenize", {**kept, **fields}).json["count"])
        # The name of a special token stays text.
        assert http.engine.of(m.Submit)[-1].prompt.tolist().count(2) == 4
    assert counts[0] == counts[1] > counts[2]


@pytest.mark.parametrize("name", template_names())
def test_the_prompt_s_end_shows_whether_reasoning_is_open(codec: TextCodec, name: str) -> None:
    template = with_template(codec, name).require_template()

    def thinking(**variables: Any) -> Thinking:
        return template.prompt(ASK, open_answer=True, variables=variables).thinking

    by_default = {"qwen3": Thinking.ALLOWED, "qwen3_5_nothink": Thinking.NEVER}
    assert thinking() is by_default.get(name, Thinking.OPENED)
    assert thinking(enable_thinking=False) is Thinking.NEVER
    assert thinking(enable_thinking=True) is (
        Thinking.ALLOWED if name == "qwen3" else Thinking.OPENED
    )


def test_a_template_that_knows_no_tags_never_thinks() -> None:
    assert thinking_behind("user <think>\n", "{{ messages }}") is Thinking.NEVER


def test_variables_are_part_of_what_is_remembered_of_a_conversation(codec: TextCodec) -> None:
    """Compare tokens and marks with a new template's."""
    turn = ChatMessage("assistant", "fine", reasoning="so")
    messages = [*ASK, turn, *ASK, turn, *ASK]
    seen = with_template(codec, "qwen3_6").require_template()
    for variables in ({}, {"preserve_thinking": True}, {"preserve_thinking": False}, {}):
        new = with_template(codec, "qwen3_6").require_template()
        for count in (3, 5):
            asked: dict[str, Any] = {"open_answer": True, "variables": variables}
            rendered = seen.prompt(messages[:count], **asked)
            fresh = new.prompt(messages[:count], **asked)
            assert rendered.tokens.tolist() == fresh.tokens.tolist()
            assert rendered.marks == fresh.marks


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('{"a": 1}', {"a": 1}),
        ("", {}),
        (" null ", {}),
        ('{"a": "b', {"a": "b"}),
        ('{"a": "b\\', {"a": "b"}),
        ('{"a": "b\\u12', {"a": "b"}),
        ('{"a": "b\\\\', {"a": "b\\"}),
        ('{"a": "b", ', {"a": "b"}),
        ('{"a": "b", "c', {"a": "b"}),
        ('{"a": "b", "c":', {"a": "b"}),
        ('{"a": {"b": [1, 2', {"a": {"b": [1, 2]}}),
        ('{"a": {"b": [1, "', {"a": {"b": [1, ""]}}),
        ('{"a": [tru', {"a": []}),
        ("{", {}),
        ("[1]", {"arguments": "[1]"}),
        ("}", {"arguments": "}"}),
        ("so", {"arguments": "so"}),
        ('"so"', {"arguments": '"so"'}),
    ],
)
def test_arguments_are_read_as_far_as_they_were_written(text: str, value: Any) -> None:
    assert read_arguments(text) == value


def test_arguments_that_nest_too_deeply_are_text() -> None:
    for text in ('{"a":' * 99 + "1" + "}" * 99, '{"a":' * 99):
        assert read_arguments(text) == {"arguments": text}
