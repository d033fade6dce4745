"""POST /v1/messages over a scripted engine: prompts, answers, events, refusals."""

import base64
import json
from typing import Any

import pytest

from tasuki.engine import messages as m
from tasuki.server.anthropic.conversation import ThinkingChoice, read_thinking, signature_of
from tasuki.server.auth.callers import ANYBODY
from tasuki.server.config import ServerConfig
from tasuki.server.errors import InvalidField
from tasuki.server.text.text_codec import TextCodec
from tests.harness.agent_front import CALL, SCHEMA, THOUGHT, AgentFront, running_agent_front
from tests.harness.http_calls import JSON, Reply, message_of, named_events

USER = [{"role": "user", "content": "it was"}]
TOOL = {"name": "weather", "description": "the end", "input_schema": SCHEMA}
FUNCTION = {
    "type": "function",
    "function": {"name": "weather", "description": "the end", "parameters": SCHEMA},
}
THINKS = {"thinking": {"type": "adaptive"}}
EPHEMERAL = {"cache_control": {"type": "ephemeral"}}


def ask(front: AgentFront, headers: dict[str, str] | None = None, **fields: Any) -> Reply:
    body = {"model": "tiny", "max_tokens": 2000, "messages": USER, **fields}
    return front.http.post("/v1/messages", body, headers)


def answered(front: AgentFront, **fields: Any) -> dict[str, Any]:
    """Return the message; check for equality of the whole and the streamed one."""
    reply = ask(front, **fields)
    assert reply.status == 200, reply
    whole: dict[str, Any] = reply.json
    streamed = message_of(named_events(ask(front, **fields, stream=True)))
    for told in (whole, streamed):
        assert told.pop("id").startswith("msg_")
        for block in told["content"]:
            assert block.pop("id", "call_").startswith("call_")
    assert streamed == whole
    return whole


def refusal(reply: Reply) -> tuple[int, str, str]:
    """Return the status, the error's type and its message; check Anthropic's error shape."""
    body = reply.json
    assert (body["type"], body["request_id"]) == ("error", reply.headers["request-id"])
    assert set(body["error"]) == {"type", "message"}
    return reply.status, body["error"]["type"], body["error"]["message"]


# --- Answers


def test_an_answer_is_a_message(front: AgentFront) -> None:
    front.say("fine 漢")
    told = answered(front)
    assert told["content"] == [{"type": "text", "text": "fine 漢"}]
    assert (told["type"], told["role"], told["model"]) == ("message", "assistant", "tiny")
    assert (told["stop_reason"], told["stop_sequence"]) == ("end_turn", None)
    submit = front.submits()[-1]
    usage = told["usage"]
    assert usage["input_tokens"] + usage["cache_read_input_tokens"] == len(submit.prompt)
    assert (usage["cache_read_input_tokens"], usage["cache_creation_input_tokens"]) == (2, 0)
    assert usage["output_tokens_details"]["thinking_tokens"] == 0 < usage["output_tokens"]


def test_thinking_text_and_calls_are_blocks(front: AgentFront) -> None:
    front.say(f"{THOUGHT}I look.\n\n{CALL}\n{CALL}")
    told = answered(front, tools=[TOOL], **THINKS)
    thinking, text, *calls = told["content"]
    assert (thinking["type"], thinking["thinking"]) == ("thinking", "it was so")
    assert thinking["signature"]
    assert text == {"type": "text", "text": "I look."}
    use = {"type": "tool_use", "name": "weather", "input": {"city": "Bath", "days": 2}}
    assert calls == [use, use]
    assert told["stop_reason"] == "tool_use"
    one = {"type": "auto", "disable_parallel_tool_use": True}
    alone = answered(front, tools=[TOOL], tool_choice=one, **THINKS)
    assert alone["content"][2:] == [use]


def test_a_stream_s_events(front: AgentFront) -> None:
    front.say(f"{THOUGHT}fine")
    reply = ask(front, {"x-request-id": "r"}, stream=True)
    assert reply.headers["Content-Type"].startswith("text/event-stream")
    events = named_events(reply)
    kinds = [event["type"] for event in events]
    assert kinds[:3] == ["message_start", "ping", "content_block_start"]
    assert kinds[-3:] == ["content_block_stop", "message_delta", "message_stop"]
    start = events[0]["message"]
    assert (start["id"], start["model"], start["content"]) == ("msg_r", "tiny", [])
    assert start["usage"]["input_tokens"] == len(front.submits()[-1].prompt)
    assert b"[DONE]" not in reply.body


def test_the_model_is_called_as_it_was_asked_for(front: AgentFront) -> None:
    assert answered(front, model="other")["model"] == "other"


def test_a_stop_sequence_is_told(front: AgentFront) -> None:
    front.say(f"{THOUGHT}fine morning start")
    told = answered(front, stop_sequences=["never", " start"], **THINKS)
    assert told["content"][-1] == {"type": "text", "text": "fine morning"}
    assert (told["stop_reason"], told["stop_sequence"]) == ("stop_sequence", " start")


@pytest.mark.parametrize(
    ("max_tokens", "reason"), [(7, "max_tokens"), (1 << 20, "model_context_window_exceeded")]
)
def test_an_answer_that_is_cut(front: AgentFront, max_tokens: int, reason: str) -> None:
    front.end_by_length()
    assert answered(front, max_tokens=max_tokens)["stop_reason"] == reason
    submit = front.submits()[-1]
    transfer_id = (1 << 15) - len(submit.prompt)
    assert submit.sampling.max_new_tokens == min(max_tokens, transfer_id)


def test_an_error_in_a_stream_is_an_event(front: AgentFront) -> None:
    front.http.engine.hold = True
    connection = front.http.connect()
    body = json.dumps({"max_tokens": 9, "messages": USER, "stream": True})
    connection.request("POST", "/v1/messages", body, {**JSON, "x-request-id": "r"})
    response = connection.getresponse()
    loop, client = front.http.front.loop, front.http.front.client
    loop.call_soon_threadsafe(client.abort, m.RequestId("r"), ANYBODY)
    *_, last, end = response.read().decode().split("\n\n")
    connection.close()
    assert end == "" and last.startswith("event: error\ndata: ")
    assert '"type":"error"' in last and '"request_id":"r"' in last


# --- Prompts


def test_a_conversation_is_rendered_as_the_chat_s(front: AgentFront) -> None:
    result = {"type": "tool_result", "tool_use_id": "t"}
    ask(
        front,
        system=[{"type": "text", "text": "the"}, {"type": "text", "text": " system"}],
        tools=[TOOL],
        **THINKS,
        messages=[
            {"role": "user", "content": [{"type": "text", "text": "it was"}]},
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": "so", "signature": "s"},
                    {"type": "text", "text": "I look."},
                    {"type": "tool_use", "id": "t", "name": "weather", "input": {"city": "Bath"}},
                ],
            },
            {
                "role": "user",
                "content": [
                    {**result, "content": "fine"},
                    {**result, "content": [{"type": "text", "text": "start"}], "is_error": True},
                    {**result},
                ],
            },
        ],
    )
    call = {"id": "t", "type": "function"}
    function = {"name": "weather", "arguments": '{"city": "Bath"}'}
    answer = {"role": "tool", "tool_call_id": "t"}
    front.http.chat(
        tools=[FUNCTION],
        messages=[
            {"role": "system", "content": "the system"},
            *USER,
            {
                "role": "assistant",
                "content": "I look.",
                "reasoning_content": "so",
                "tool_calls": [{**call, "function": function}],
            },
            {**answer, "content": "fine"},
            {**answer, "content": "start"},
            {**answer, "content": ""},
        ],
    )
    ours, theirs = front.submits()
    assert front.text(ours.prompt) == front.text(theirs.prompt)


def test_a_turn_that_comes_back_is_resumed_at_its_end(front: AgentFront) -> None:
    """Resume the turn at its end, even if its thinking was not shown."""
    for display in ("summarized", "omitted"):
        front.say(f"{THOUGHT}I look.\n\n{CALL}")
        asked = {"tools": [TOOL], "thinking": {"type": "adaptive", "display": display}}
        content = ask(front, **asked).json["content"]
        assert (content[0]["thinking"] == "") == (display == "omitted")
        turn = front.turn()
        result = {"type": "tool_result", "tool_use_id": content[-1]["id"], "content": "rain"}
        again = [*USER, {"role": "assistant", "content": content}]
        ask(front, messages=[*again, {"role": "user", "content": [result]}], **asked)
        assert front.prompt.startswith(front.text(turn)), display


def test_a_block_whose_text_was_changed_is_no_thought() -> None:
    omitted = ThinkingChoice(shown=False)
    assert read_thinking("", signature_of("so 漢", omitted)) == "so 漢"
    assert read_thinking("seen", signature_of("so", ThinkingChoice())) == "seen"
    assert read_thinking("", "somebody else's") == ""
    for broken in ("tasuki.text.!", "tasuki.text." + base64.b64encode(b"\xff").decode()):
        with pytest.raises(InvalidField, match="invalid signature in thinking block"):
            read_thinking("", broken)


def test_later_system_messages_join_what_stands_before(front: AgentFront) -> None:
    answer = {"role": "assistant", "content": "fine"}
    later = {"role": "system", "content": [{"type": "text", "text": "be brief"}]}
    ask(front, system="one", messages=[later, *USER, later, answer, later, *USER])
    reminder = "<system-reminder>\nbe brief\n</system-reminder>"
    assert front.prompt == (
        "<|im_start|>system\none\n\nbe brief<|im_end|>\n"
        f"<|im_start|>user\nit was\n{reminder}<|im_end|>\n"
        "<|im_start|>assistant\nfine<|im_end|>\n"
        f"<|im_start|>user\n{reminder}<|im_end|>\n"
        "<|im_start|>user\nit was<|im_end|>\n"
        "<|im_start|>assistant\n<think>\n\n</think>\n\n"
    )
    ask(front, messages=[later, *USER])
    assert front.prompt.startswith("<|im_start|>system\nbe brief<|im_end|>\n<|im_start|>user\nit")


def test_who_pays_is_no_part_of_the_prompt(front: AgentFront) -> None:
    """Drop Claude Code's first line, meant for Anthropic. The same line elsewhere is the user's
    text and stays."""
    bill = "x-anthropic-billing-header: cc_version=2.1; cch=00ab1;"
    ask(front, system="Be brief.")
    without = front.prompt
    text = {"type": "text", "text": "Be brief."}
    for system in (f"{bill}\nBe brief.", [{"type": "text", "text": bill}, text]):
        ask(front, system=system)
        assert front.prompt == without
    said = f"Read this: {bill}"
    ask(front, system=said, messages=[{"role": "user", "content": bill}])
    assert said in front.prompt and f"<|im_start|>user\n{bill}" in front.prompt


def test_cache_control_marks_the_ends_of_messages(front: AgentFront) -> None:
    system = [{"type": "text", "text": "the system", **EPHEMERAL}]
    marked = [{"type": "text", "text": "it was", **EPHEMERAL}]
    answer = {"role": "assistant", "content": "fine"}
    messages = [*USER, answer, {"role": "user", "content": marked}]
    ask(front, system=system, messages=messages, **THINKS)
    submit = front.submits()[-1]
    ends = [front.text(submit.prompt[:mark]) for mark in submit.marks]
    assert ends == [
        "<|im_start|>system\nthe system<|im_end|>\n",
        front.text(submit.prompt).removesuffix("<|im_start|>assistant\n<think>\n"),
    ]
    ask(front, system="the system", messages=messages, **EPHEMERAL)
    assert front.submits()[-1].marks == submit.marks[-1:]
    ask(front, system="the system", messages=messages)
    assert front.submits()[-1].marks == submit.marks[-1:]


@pytest.mark.parametrize(("length", "status"), [(256, 200), (257, 400)])
def test_user_id_beyond_its_bound_is_refused_by_its_name(
    front: AgentFront, length: int, status: int
) -> None:
    reply = ask(front, metadata={"user_id": "x" * length})
    assert reply.status == status
    assert status == 200 or "metadata.user_id" in reply.json["error"]["message"]


def test_sampling_reaches_the_engine(front: AgentFront) -> None:
    ask(front, temperature=0.5, top_p=0.9, top_k=3, seed=7, max_tokens=9)
    submit = front.submits()[-1]
    sampling = submit.sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k) == (0.5, 0.9, 3)
    assert (sampling.seed, sampling.max_new_tokens) == (7, 9)
    user = {"metadata": {"user_id": "u"}}
    ask(front, cache_salt="s", priority=3, **user)
    submit = front.submits()[-1]
    assert (submit.salt, submit.priority) == (b"s", 3)
    assert submit.session is not None and "u" not in submit.session.split()
    ask(front)
    assert front.submits()[-1].sampling.temperature == 1


def test_thinking_is_a_choice_of_the_template_s(front: AgentFront) -> None:
    ask(front, thinking={"type": "disabled"})
    assert front.prompt.endswith("<think>\n\n</think>\n\n")
    for choice in ({"type": "enabled", "budget_tokens": 1024}, {"type": "adaptive"}):
        ask(front, thinking=choice)
        assert front.prompt.endswith("<think>\n")


@pytest.mark.parametrize("fields", [{}, {"thinking": {"type": "disabled"}}], ids=str)
def test_a_message_that_asks_for_no_thinking_begins_with_text(
    front: AgentFront, fields: dict[str, Any]
) -> None:
    front.say("fine")
    told = answered(front, tools=[TOOL], **fields)
    assert told["content"] == [{"type": "text", "text": "fine"}]
    assert front.prompt.endswith("<think>\n\n</think>\n\n")


def test_a_template_that_always_thinks_does_so_unseen(codec: TextCodec) -> None:
    source = "{% for message in messages %}{{ message.content }}{% endfor %}<think>\n"
    with running_agent_front(codec, source=source) as front:
        front.say(f"{THOUGHT}fine {CALL}")
        told = answered(front, tools=[TOOL])
        assert [block["type"] for block in told["content"]] == ["text", "tool_use"]
        assert told["usage"]["output_tokens_details"]["thinking_tokens"] > 0
        assert answered(front, **THINKS)["content"][0]["type"] == "thinking"


def test_a_node_may_let_the_template_think_unasked(codec: TextCodec) -> None:
    with running_agent_front(codec, config=ServerConfig(messages_thinking="template")) as front:
        front.say(f"{THOUGHT}fine")
        assert [block["type"] for block in answered(front)["content"]] == ["thinking", "text"]
        assert front.prompt.endswith("<think>\n")
        ask(front, thinking={"type": "disabled"})
        assert front.prompt.endswith("<think>\n\n</think>\n\n")


def test_tokens_are_counted_as_they_would_be_computed(front: AgentFront) -> None:
    asked = {"system": "the system", "tools": [TOOL], "messages": USER}
    counted = front.http.post("/v1/messages/count_tokens", {"model": "tiny", **asked})
    ask(front, **asked)
    assert counted.json == {"input_tokens": len(front.submits()[-1].prompt)}
    refused = front.http.post("/v1/messages/count_tokens", {"messages": []})
    assert refusal(refused)[:2] == (400, "invalid_request_error")


def test_what_claude_code_sends(front: AgentFront) -> None:
    """Read requests in the shape of version 2.1's requests to a gateway, with texts cut short."""
    headers = {
        "anthropic-version": "2023-06-01",
        "anthropic-beta": "claude-code-20250219,mid-conversation-system-2026-04-07",
        "x-app": "cli",
    }
    first = {
        "role": "user",
        "content": [
            {"type": "text", "text": "<system-reminder>\nbe brief\n</system-reminder>\n"},
            {"type": "text", "text": "List the files."},
        ],
    }
    use = {"type": "tool_use", "id": "toolu_1", "name": "Bash", "input": {"command": "ls"}}
    result = {
        "tool_use_id": "toolu_1",
        "type": "tool_result",
        "content": "(no output)",
        "is_error": False,
    }
    body = {
        "model": "other",
        "messages": [
            first,
            {"role": "system", "content": "# Environment\n"},
            {"role": "assistant", "content": [use]},
            {"role": "user", "content": [result]},
            {"role": "system", "content": [{"type": "text", "text": "1 token left", **EPHEMERAL}]},
        ],
        "system": [
            {"type": "text", "text": "x-anthropic-billing-header: cc_version=2.1.291;"},
            {"type": "text", "text": "You are an agent.", **EPHEMERAL},
        ],
        "tools": [{"name": "Bash", "description": "Runs.", "input_schema": {"type": "object"}}],
        "metadata": {"user_id": '{"session_id": "s"}'},
        "max_tokens": 32000,
        "thinking": {"type": "adaptive", "display": "omitted"},
        "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        "output_config": {"effort": "high"},
        "stream": True,
    }
    front.say(f"{THOUGHT}fine")
    reply = front.http.post("/v1/messages?beta=true", body, headers)
    thinking, text = message_of(named_events(reply))["content"]
    assert (thinking["thinking"], text["text"]) == ("", "fine")
    submit = front.submits()[-1]
    assert len(submit.marks) == 2
    assert "billing" not in front.prompt and "You are an agent." in front.prompt
    # The tool loop goes on: text after the result opens no user turn.
    assert front.prompt.endswith(
        "<tool_response>\n(no output)\n<system-reminder>\n1 token left\n</system-reminder>\n"
        "</tool_response><|im_end|>\n<|im_start|>assistant\n<think>\n"
    )


# --- Refusals


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"max_tokens": None}, "max_tokens"),
        ({"messages": [{"role": "user", "content": 3}]}, "messages[0].content"),
        ({"container": "c"}, "container"),
        ({"tool_choice": {"type": "any"}}, "tool_choice"),
    ],
)
def test_what_is_not_honoured_is_refused_by_name(
    front: AgentFront, fields: dict[str, Any], named: str
) -> None:
    status, kind, message = refusal(ask(front, **fields))
    assert (status, kind) == (400, "invalid_request_error")
    assert named in message


@pytest.mark.parametrize(
    "fields", [{"service_tier": "auto"}, {"inference_geo": "us"}, {"container": None}]
)
def test_fields_about_accounts_change_nothing(front: AgentFront, fields: dict[str, Any]) -> None:
    assert ask(front, **fields).status == 200


def test_refusals_have_anthropic_s_status_and_type(codec: TextCodec) -> None:
    config = ServerConfig(api_key="secret", requests_per_minute=6)
    with running_agent_front(codec, config, max_tokens=300) as front:
        key = {"x-api-key": "secret"}
        assert refusal(ask(front))[:2] == (401, "authentication_error")
        assert refusal(ask(front, key, model="huge"))[:2] == (404, "not_found_error")
        long = [{"role": "user", "content": "it " * 70_000}]
        status, kind, message = refusal(ask(front, key, messages=long))
        assert (status, kind) == (400, "invalid_request_error")
        assert message.startswith("prompt is too long: ")
        unknown = {**key, "anthropic-version": "2019-01-01"}
        assert refusal(ask(front, unknown))[:2] == (400, "invalid_request_error")
        front.http.engine.reject = m.RequestError(m.ErrorKind.DRAINING, "later")
        reply = ask(front, key, stream=True)
        # The status is the same as elsewhere. A reverse proxy that retries only on 503 then picks
        # another node.
        assert refusal(reply) == (503, "overloaded_error", "later")
        assert reply.headers["Retry-After"] == "1"
        front.http.engine.reject = m.RequestError(m.ErrorKind.QUEUE_TIMEOUT, "later")
        wrong = front.http.ask("GET", "/v1/messages", headers=key)
        assert refusal(wrong)[:2] == (405, "invalid_request_error")
        assert refusal(ask(front, key))[0] == 529
        assert refusal(ask(front, key))[:2] == (429, "rate_limit_error")
