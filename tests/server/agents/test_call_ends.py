"""Tests of answers with a tool call at the end. Chats, messages and responses agree on its
arguments, and the reason shows if the call may be run."""

import json
from dataclasses import dataclass
from typing import Any

import pytest

from tasuki.server.config import ServerConfig
from tasuki.server.text.text_codec import TextCodec
from tests.harness.agent_front import AgentFront, running_agent_front
from tests.harness.http_calls import message_of, named_events
from tests.harness.response_sockets import response_of
from tests.harness.written_calls import WRITE_FILE

CHAT_TOOL = {"type": "function", "function": {"name": "write_file", "parameters": WRITE_FILE}}
RESPONSE_TOOL = {"type": "function", "name": "write_file", "parameters": WRITE_FILE}
MESSAGE_TOOL = {"name": "write_file", "input_schema": WRITE_FILE}
USER = [{"role": "user", "content": "it was"}]
BEGUN = "t\n</think>\n\n<tool_call>\n<function=write_file>\n"
PATH = "<parameter=path>\na.txt\n</parameter>\n"
OPEN_CONTENT = "<parameter=content>\nhi"
END = "\n</parameter>\n</function>\n</tool_call>"
WHOLE = {"path": "a.txt", "content": "hi"}


@dataclass(frozen=True)
class Ended:
    """The end of an answer with a call. reason: in the API's words. status: the item's status, or
    None if the API has none."""

    name: str
    arguments: dict[str, Any]
    reason: str
    status: str | None = None


def chats(front: AgentFront, **fields: Any) -> list[Ended]:
    asked = {"messages": USER, "tools": [CHAT_TOOL], **fields}
    (choice,) = front.http.post("/v1/chat/completions", asked).json["choices"]
    called = [call["function"] for call in choice["message"].get("tool_calls", [])]
    streamed = front.http.post("/v1/chat/completions", {**asked, "stream": True})
    deltas = [event["choices"][0]["delta"] for event in streamed.events if event["choices"]]
    pieces = [call["function"] for delta in deltas for call in delta.get("tool_calls", [])]
    whole = "".join(call["arguments"] for call in called)
    assert "".join(piece["arguments"] for piece in pieces) == whole
    assert streamed.events[-1]["choices"][0]["finish_reason"] == choice["finish_reason"]
    return [
        Ended(call["name"], json.loads(call["arguments"]), choice["finish_reason"])
        for call in called
    ]


def messages(front: AgentFront, **fields: Any) -> list[Ended]:
    stops = {"stop_sequences": fields.pop("stop")} if "stop" in fields else {}
    asked = {"model": "tiny", "max_tokens": 2000, "messages": USER, "tools": [MESSAGE_TOOL]}
    body = {**asked, **stops, **fields}
    whole = front.http.post("/v1/messages", body).json
    streamed = message_of(named_events(front.http.post("/v1/messages", {**body, "stream": True})))
    assert streamed["stop_reason"] == whole["stop_reason"]
    uses, again = (
        [block for block in each["content"] if block["type"] == "tool_use"]
        for each in (whole, streamed)
    )
    assert [block["input"] for block in uses] == [block["input"] for block in again]
    return [Ended(block["name"], block["input"], whole["stop_reason"]) for block in uses]


def responses(front: AgentFront, **fields: Any) -> list[Ended]:
    body = {"input": "it was", "tools": [RESPONSE_TOOL], **fields}
    whole = front.http.post("/v1/responses", body).json
    streamed = response_of(front.http.post("/v1/responses", {**body, "stream": True}))
    assert streamed["status"] == whole["status"]
    calls, again = (
        [item for item in each["output"] if item["type"] == "function_call"]
        for each in (whole, streamed)
    )
    assert [call["arguments"] for call in calls] == [call["arguments"] for call in again]
    return [
        Ended(call["name"], json.loads(call["arguments"]), whole["status"], call["status"])
        for call in calls
    ]


def test_a_call_that_the_model_left_open_is_closed_and_may_be_run(front: AgentFront) -> None:
    front.say(BEGUN + PATH + OPEN_CONTENT)
    assert chats(front) == [Ended("write_file", WHOLE, "tool_calls")]
    assert messages(front) == [Ended("write_file", WHOLE, "tool_use")]
    assert responses(front) == [Ended("write_file", WHOLE, "completed", "completed")]


def test_a_call_without_what_its_schema_requires_awaits_no_result(front: AgentFront) -> None:
    front.say(BEGUN + PATH + "</function>\n</tool_call>")
    assert chats(front) == [Ended("write_file", {"path": "a.txt"}, "stop")]
    assert messages(front) == [Ended("write_file", {"path": "a.txt"}, "end_turn")]


@pytest.mark.parametrize(
    ("text", "arguments"),
    [
        (PATH + OPEN_CONTENT, WHOLE),
        (PATH + OPEN_CONTENT + END[:12], WHOLE),
        (PATH + "<parameter=mode>\n12", {"path": "a.txt"}),
        (PATH + "<param", {"path": "a.txt"}),
        ("", {}),
    ],
)
def test_a_call_that_is_cut_by_its_length_has_what_was_written(
    front: AgentFront, text: str, arguments: dict[str, Any]
) -> None:
    front.end_by_length()
    front.say(BEGUN + text)
    assert chats(front) == [Ended("write_file", arguments, "length")]
    assert messages(front) == [Ended("write_file", arguments, "max_tokens")]
    assert responses(front) == [Ended("write_file", arguments, "incomplete", "incomplete")]


def test_a_stop_string_in_a_call_is_no_reason_to_run_it(codec: TextCodec) -> None:
    answer = BEGUN + PATH + OPEN_CONTENT + " every" + END
    cut = {"path": "a.txt", "content": "hi "}
    with running_agent_front(codec, ServerConfig(stop_strings="everywhere")) as front:
        front.say(answer)
        assert chats(front, stop=["every"]) == [Ended("write_file", cut, "stop")]
        assert messages(front, stop=["every"]) == [Ended("write_file", cut, "stop_sequence")]
    whole = {"path": "a.txt", "content": "hi every"}
    with running_agent_front(codec) as front:
        front.say(answer)
        assert chats(front, stop=["every"]) == [Ended("write_file", whole, "tool_calls")]
        assert messages(front, stop=["every"]) == [Ended("write_file", whole, "tool_use")]


def test_whole_calls_come_at_once_and_never_cut_off(codec: TextCodec) -> None:
    with running_agent_front(codec, ServerConfig(whole_calls=True)) as front:
        front.say(BEGUN + PATH + OPEN_CONTENT + END)
        assert chats(front) == [Ended("write_file", WHOLE, "tool_calls")]
        asked = {"messages": USER, "tools": [CHAT_TOOL], "stream": True}
        reply = front.http.post("/v1/chat/completions", asked)
        deltas = [event["choices"][0]["delta"] for event in reply.events if event["choices"]]
        begun, whole = [delta["tool_calls"][0] for delta in deltas if "tool_calls" in delta]
        assert begun["function"]["arguments"] == ""
        assert json.loads(whole["function"]["arguments"]) == WHOLE
        front.end_by_length()
        front.say(BEGUN + PATH + OPEN_CONTENT)
        assert chats(front) == messages(front) == responses(front) == []


def test_a_call_in_a_thought_that_never_closes_is_a_call(front: AgentFront) -> None:
    front.say("I will look.\n" + BEGUN.partition("</think>\n\n")[2] + PATH + OPEN_CONTENT + END)
    thinks = {"thinking": {"type": "adaptive"}}
    assert chats(front) == [Ended("write_file", WHOLE, "tool_calls")]
    assert messages(front, **thinks) == [Ended("write_file", WHOLE, "tool_use")]
    assert responses(front) == [Ended("write_file", WHOLE, "completed", "completed")]
    asked = {"max_tokens": 2000, "messages": USER, "tools": [MESSAGE_TOOL], **thinks}
    told = front.http.post("/v1/messages", asked).json["content"][0]
    item = front.http.post("/v1/responses", {"input": "it was", "tools": [RESPONSE_TOOL]}).json
    assert told["thinking"] == item["output"][0]["content"][0]["text"] == "I will look."
