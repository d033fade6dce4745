"""POST /v1/responses over a scripted engine: prompts, items, events, stored turns, refusals."""

import json
from pathlib import Path
from typing import Any

import pytest

from tasuki.engine import messages as m
from tasuki.server.auth.callers import ANYBODY
from tasuki.server.config import ServerConfig
from tasuki.server.text.text_codec import TextCodec
from tests.harness.agent_front import CALL, END, SCHEMA, THOUGHT, AgentFront, running_agent_front
from tests.harness.api_keys import headers, keys_file
from tests.harness.http_calls import JSON, Reply, named_events
from tests.harness.response_sockets import response_of

TOOL = {"type": "function", "name": "weather", "description": "the end", "parameters": SCHEMA}
FUNCTION = {
    "type": "function",
    "function": {"name": "weather", "description": "the end", "parameters": SCHEMA},
}
ENCRYPTED = {"include": ["reasoning.encrypted_content"]}


def ask(front: AgentFront, headers: dict[str, str] | None = None, **fields: Any) -> Reply:
    return front.http.post("/v1/responses", {"input": "it was", **fields}, headers)


def made(front: AgentFront, **fields: Any) -> dict[str, Any]:
    reply = ask(front, **fields)
    assert reply.status == 200, reply
    found: dict[str, Any] = reply.json
    return found


def bare(response: dict[str, Any]) -> dict[str, Any]:
    """Return the response without ids and times; these differ between two equal answers."""
    output = [
        {name: value for name, value in item.items() if name not in ("id", "call_id")}
        for item in response["output"]
    ]
    times = {"id": "", "created_at": 0, "completed_at": 0}
    return {**response, **times, "output": output}


def answered(front: AgentFront, **fields: Any) -> dict[str, Any]:
    """Return the streamed response; check for equality with the whole one."""
    whole = made(front, **fields)
    streamed = response_of(ask(front, **fields, stream=True))
    assert bare(streamed) == bare(whole)
    return streamed


# --- Answers


def test_an_answer_is_a_message(front: AgentFront) -> None:
    front.say("</think>\n\nfine 漢")
    told = answered(front, metadata={"a": "b"}, instructions="be brief", temperature=0)
    (item,) = told["output"]
    assert (item["type"], item["role"], item["status"]) == ("message", "assistant", "completed")
    text = {"type": "output_text", "text": "fine 漢", "annotations": [], "logprobs": []}
    assert item["content"] == [text]
    assert (told["object"], told["status"], told["model"]) == ("response", "completed", "tiny")
    assert (told["error"], told["incomplete_details"]) == (None, None)
    assert (told["metadata"], told["instructions"]) == ({"a": "b"}, "be brief")
    assert (told["temperature"], told["top_p"], told["store"]) == (0, 1, True)
    assert (told["parallel_tool_calls"], told["truncation"]) == (True, "disabled")
    usage = told["usage"]
    assert usage["input_tokens"] == len(front.submits()[-1].prompt)
    assert usage["input_tokens_details"] == {"cached_tokens": 2}
    assert usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"]
    assert usage["output_tokens_details"]["reasoning_tokens"] == 0 < usage["output_tokens"]


def test_reasoning_text_and_calls_are_items(front: AgentFront) -> None:
    front.say(f"{THOUGHT}I look.\n\n{CALL}\n{CALL}")
    reasoning, message, *calls = answered(front, tools=[TOOL])["output"]
    part = {"type": "reasoning_text", "text": "it was so"}
    assert (reasoning["type"], reasoning["content"]) == ("reasoning", [part])
    assert reasoning["summary"] == [] and "encrypted_content" not in reasoning
    assert message["content"][0]["text"] == "I look."
    for call in calls:
        assert (call["type"], call["name"]) == ("function_call", "weather")
        assert json.loads(call["arguments"]) == {"city": "Bath", "days": 2}
        assert call["call_id"].startswith("call_") and "namespace" not in call
    assert len(calls) == 2
    alone = answered(front, tools=[TOOL], parallel_tool_calls=False, **ENCRYPTED)["output"]
    assert [item["type"] for item in alone] == ["reasoning", "message", "function_call"]
    assert alone[0]["encrypted_content"]


@pytest.mark.parametrize(
    "asked", [{"top_logprobs": 1}, {"include": ["message.output_text.logprobs"]}], ids=str
)
def test_tokens_of_messages_have_their_logprobs(front: AgentFront, asked: dict[str, Any]) -> None:
    """Report logprobs for tokens of messages, not of thoughts, marks and calls. The text held back
    by the parser makes no difference."""
    text = "I < see 漢"
    front.say(f"{THOUGHT}{text}\n\n{CALL}")
    top = asked.get("top_logprobs", 0)
    told = answered(front, tools=[TOOL], **asked)
    assert told["top_logprobs"] == top == front.submits()[-1].sampling.top_logprobs
    (message,) = [item for item in told["output"] if item["type"] == "message"]
    (part,) = message["content"]
    logprobs = part["logprobs"]
    shown = b"".join(bytes(entry["bytes"]) for entry in logprobs).decode()
    assert part["text"] == text == shown.rstrip()
    assert all(len(entry["top_logprobs"]) == top for entry in logprobs)
    assert {entry["logprob"] for entry in logprobs} == {-0.5}
    events = named_events(ask(front, tools=[TOOL], stream=True, **asked))
    deltas = [event for event in events if event["type"] == "response.output_text.delta"]
    assert [entry for event in deltas for entry in event["logprobs"]] == logprobs
    (done,) = [event for event in events if event["type"] == "response.output_text.done"]
    assert done["logprobs"] == logprobs
    front.say(f"{THOUGHT}fine")
    (_, plain) = answered(front)["output"]
    assert plain["content"][0]["logprobs"] == []


def test_penalties_reach_the_engine_and_the_response(front: AgentFront) -> None:
    front.say("</think>\n\nfine")
    told = answered(front, presence_penalty=0.5, frequency_penalty=-1)
    assert (told["presence_penalty"], told["frequency_penalty"]) == (0.5, -1)
    sampling = front.submits()[-1].sampling
    assert (sampling.presence_penalty, sampling.frequency_penalty) == (0.5, -1)
    plain = answered(front)
    assert (plain["presence_penalty"], plain["frequency_penalty"]) == (0, 0)
    assert ask(front, presence_penalty=3).error["param"] == "presence_penalty"


def test_echoed_functions_have_every_field_of_the_schema(front: AgentFront) -> None:
    bare_tool = {"type": "function", "name": "look"}
    custom = {"type": "custom", "name": "note"}
    (function, free, given) = answered(front, tools=[bare_tool, custom, {**TOOL, "strict": True}])[
        "tools"
    ]
    assert function == {**bare_tool, "description": None, "parameters": None, "strict": None}
    assert free == custom
    assert given == {**TOOL, "strict": True}


def test_an_answer_that_is_cut_is_incomplete(front: AgentFront) -> None:
    front.end_by_length()
    front.say(f"{THOUGHT}fine")
    told = answered(front, max_output_tokens=7)
    assert (told["status"], told["incomplete_details"]) == (
        "incomplete",
        {"reason": "max_output_tokens"},
    )
    assert [item["status"] for item in told["output"]] == ["completed", "incomplete"]
    assert front.submits()[-1].sampling.max_new_tokens == 7
    made(front, max_output_tokens=1 << 20)
    submit = front.submits()[-1]
    assert submit.sampling.max_new_tokens == (1 << 15) - len(submit.prompt)


def test_an_error_in_a_stream_is_a_failed_response(front: AgentFront) -> None:
    front.http.engine.hold = True
    connection = front.http.connect()
    body = json.dumps({"input": "it was", "stream": True})
    connection.request("POST", "/v1/responses", body, {**JSON, "x-request-id": "r"})
    response = connection.getresponse()
    loop, client = front.http.front.loop, front.http.front.client
    loop.call_soon_threadsafe(client.abort, m.RequestId("r"), ANYBODY)
    reply = Reply(200, {}, response.read())
    connection.close()
    last = named_events(reply)[-1]
    assert last["type"] == "response.failed" and last["response"]["status"] == "failed"
    assert last["response"]["error"]["code"] == "aborted"


def test_a_prompt_that_is_too_long_is_told_in_the_stream(front: AgentFront) -> None:
    long = "it " * 100_000
    refused = ask(front, input=long)
    assert refused.refusal == (400, "context_length_exceeded")
    failed = response_of(ask(front, input=long, stream=True))
    assert failed["error"]["code"] == "context_length_exceeded"


# --- Prompts

ITEMS: list[dict[str, Any]] = [
    {"type": "message", "role": "developer", "content": "be brief"},
    {"role": "user", "content": [{"type": "input_text", "text": "it was"}]},
    {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "so"}]},
    {
        "type": "message",
        "role": "assistant",
        "content": [{"type": "output_text", "text": "I look.", "annotations": []}],
    },
    {"type": "function_call", "call_id": "c", "name": "weather", "arguments": '{"city": "Bath"}'},
    {"type": "function_call_output", "call_id": "c", "output": "fine"},
    {
        "type": "function_call_output",
        "call_id": "d",
        "output": [{"type": "input_text", "text": "start"}],
    },
]


def test_a_conversation_is_rendered_as_the_chat_s(front: AgentFront) -> None:
    made(front, instructions="the system", tools=[TOOL], input=ITEMS)
    call = {"id": "c", "type": "function"}
    function = {"name": "weather", "arguments": '{"city": "Bath"}'}
    front.http.chat(
        tools=[FUNCTION],
        messages=[
            {"role": "system", "content": "the system\n\nbe brief"},
            {"role": "user", "content": "it was"},
            {
                "role": "assistant",
                "content": "I look.",
                "reasoning_content": "so",
                "tool_calls": [{**call, "function": function}],
            },
            {"role": "tool", "tool_call_id": "c", "content": "fine"},
            {"role": "tool", "tool_call_id": "d", "content": "start"},
        ],
    )
    ours, theirs = front.submits()
    assert front.text(ours.prompt) == front.text(theirs.prompt)


def test_items_of_a_stored_response_are_sent_by_their_names(front: AgentFront) -> None:
    front.say(f"{THOUGHT}I look.\n\n{CALL}")
    first = made(front, tools=[TOOL])
    turn = front.turn()
    streamed = response_of(ask(front, tools=[TOOL], stream=True))
    given = {"role": "user", "content": "it was"}
    result = {"type": "function_call_output", "call_id": "c", "output": "rain"}
    for output in (first["output"], streamed["output"]):
        assert [item["type"] for item in output] == ["reasoning", "message", "function_call"]
        named = [{"type": "item_reference", "id": item["id"]} for item in output]
        made(front, tools=[TOOL], input=[given, *named, result])
        assert front.submits()[-1].prompt[: len(turn)].tolist() == turn


def test_an_item_that_is_not_stored_is_refused_by_its_name(
    codec: TextCodec, tmp_path: Path
) -> None:
    config = ServerConfig(api_keys=keys_file(tmp_path, "ann k1\nbob k2\n"))
    with running_agent_front(codec, config) as front:
        (item,) = ask(front, headers("k1")).json["output"]
        unstored = ask(front, headers("k1"), store=False).json["output"][0]["id"]
        others = f"{item['id']}7"
        for key, name in (("k2", item["id"]), ("k1", unstored), ("k1", others), ("k1", "msg_1")):
            refused = ask(front, headers(key), input=[{"type": "item_reference", "id": name}])
            assert (refused.status, refused.error["param"]) == (400, "input[0].id")
        refused = ask(front, headers("k1"), input=[{"type": "item_reference"}])
        assert (refused.status, refused.error["param"]) == (400, "input[0].id")
        asked = [{"type": "item_reference", "id": item["id"]}, {"role": "user", "content": "so"}]
        assert ask(front, headers("k1"), input=asked).status == 200


@pytest.mark.parametrize("sent", ["whole", "without content", "without reasoning's id"])
def test_a_turn_that_comes_back_is_resumed_at_its_end(front: AgentFront, sent: str) -> None:
    front.say(f"{THOUGHT}I look.\n\n{CALL}")
    asked = {"tools": [TOOL], "store": False, **ENCRYPTED}
    output = made(front, **asked)["output"]
    turn = front.turn()
    if sent == "without content":
        output[0]["content"] = None
    if sent == "without reasoning's id":
        del output[0]["id"]
    result = {"type": "function_call_output", "call_id": output[-1]["call_id"], "output": "rain"}
    first = {"role": "user", "content": "it was"}
    made(front, **{**asked, "input": [first, *output, result]})
    assert front.prompt.startswith(front.text(turn))


def test_tools_of_free_text_and_of_namespaces(front: AgentFront) -> None:
    patch = {
        "type": "custom",
        "name": "apply_patch",
        "description": "Edits.",
        "format": {"type": "grammar", "syntax": "lark", "definition": "start: /.+/"},
    }
    agents = {"type": "namespace", "name": "mcp__agents", "tools": [{**TOOL, "name": "close"}]}
    search = {"type": "web_search", "external_web_access": False}
    tools = [patch, agents, search]
    text = "*** Begin\n+it\n"
    front.say(
        f"{THOUGHT}<tool_call>\n<function=apply_patch>\n<parameter=input>\n{text}\n</parameter>\n"
        "</function>\n</tool_call>\n<tool_call>\n<function=mcp__agents__close>\n"
        "<parameter=city>\nBath\n</parameter>\n</function>\n</tool_call>"
    )
    _, custom, call = answered(front, tools=tools)["output"]
    assert (custom["type"], custom["name"], custom["input"]) == (
        "custom_tool_call",
        "apply_patch",
        text,
    )
    assert (call["name"], call["namespace"]) == ("close", "mcp__agents")
    turn = front.turn()
    assert "start: /.+/" in front.prompt and "web_search" not in front.prompt
    outputs = [
        {"type": "custom_tool_call_output", "call_id": custom["call_id"], "output": "fine"},
        {"type": "function_call_output", "call_id": call["call_id"], "output": "fine"},
    ]
    thought = {"type": "reasoning", "summary": [], "content": None, "encrypted_content": None}
    shown = {**thought, "content": [{"type": "reasoning_text", "text": "it was so"}]}
    first = {"role": "user", "content": "it was"}
    made(front, tools=tools, input=[first, shown, custom, call, *outputs])
    assert front.prompt.startswith(front.text(turn))


def test_what_codex_sends(front: AgentFront) -> None:
    """Read a request in the shape of version 0.159's requests, with texts cut short."""

    def said(role: str, *texts: str) -> dict[str, Any]:
        parts = [{"type": "input_text", "text": text} for text in texts]
        return {"type": "message", "id": "msg_1", "role": role, "content": parts}

    body = {
        "model": "other",
        "instructions": "You are an agent.",
        "input": [
            said("developer", "<skills>", "<permissions>"),
            said("user", "<environment_context>"),
            said("user", "List the files."),
            {
                "type": "reasoning",
                "id": "rs_1",
                "summary": [{"type": "summary_text", "text": "Plan."}],
                "content": None,
                "encrypted_content": "of another model",
            },
            {
                "type": "function_call",
                "id": "fc_1",
                "name": "exec_command",
                "arguments": '{"cmd":"ls"}',
                "call_id": "call_1",
            },
            {"type": "function_call_output", "id": "o", "call_id": "call_1", "output": "a\n"},
        ],
        "tools": [
            {"type": "function", "name": "exec_command", "strict": False, "parameters": SCHEMA},
            {"type": "web_search", "external_web_access": False},
        ],
        "tool_choice": "auto",
        "parallel_tool_calls": True,
        "reasoning": {"effort": "medium", "summary": "auto"},
        "store": False,
        "stream": True,
        "include": ["reasoning.encrypted_content"],
        "prompt_cache_key": "thread",
        "client_metadata": {"session_id": "s"},
    }
    front.say(f"{THOUGHT}fine")
    told = response_of(front.http.post("/v1/responses", body, {"x-client-request-id": "s"}))
    assert [item["type"] for item in told["output"]] == ["reasoning", "message"]
    assert (told["status"], told["store"], told["model"]) == ("completed", False, "other")
    assert "<think>\nPlan.\n</think>" in front.prompt
    assert front.submits()[-1].session is not None
    assert front.http.ask("GET", f"/v1/responses/{told['id']}").status == 404


# --- Stored turns


def test_a_stored_response_is_an_exact_turn_end(front: AgentFront) -> None:
    """Resume token by token, even if the template itself would drop the thoughts of earlier
    questions."""
    said = [f"{THOUGHT}I look.\n\n{CALL}", f"{THOUGHT}It rains.", f"{THOUGHT}fine"]
    asked = {"tools": [TOOL], "instructions": "be brief"}
    result = {"type": "function_call_output", "call_id": "c", "output": "rain"}
    name: str | None = None
    turn: list[int] = []
    for answer, given in zip(said, ("it was", [result], "and then"), strict=True):
        front.say(answer)
        told = made(front, **asked, input=given, previous_response_id=name)
        prompt = front.submits()[-1].prompt.tolist()
        assert prompt[: len(turn)] == turn and len(prompt) > len(turn)
        assert told["previous_response_id"] == name
        name, turn = told["id"], front.turn()
    assert front.prompt.endswith(
        "It rains.<|im_end|>\n<|im_start|>user\nand then<|im_end|>\n"
        "<|im_start|>assistant\n<think>\n"
    )
    marks = front.submits()[-1].marks
    assert front.text(front.submits()[-1].prompt[: marks[-1]]).endswith("and then<|im_end|>\n")


def test_an_answer_that_was_cut_is_closed(front: AgentFront) -> None:
    front.end_by_length()
    front.http.engine.answer = lambda submit: front.codec.require_tokenizer().encode(f"{THOUGHT}fi")
    first = made(front)
    turn = front.turn()
    made(front, previous_response_id=first["id"])
    prompt = front.submits()[-1].prompt.tolist()
    assert prompt[: len(turn) + 1] == [*turn, END]


@pytest.mark.parametrize(
    "others",
    [{"instructions": "be long"}, {"tools": []}, {"enable_thinking": False}],
)
def test_other_settings_render_the_conversation_anew(
    front: AgentFront, others: dict[str, Any]
) -> None:
    asked = {"tools": [TOOL], "instructions": "be brief"}
    front.say(f"{THOUGHT}I look.")
    first = made(front, **asked)
    made(front, **{**asked, **others}, previous_response_id=first["id"], input="and then")
    assert "<|im_start|>user\nit was<|im_end|>\n<|im_start|>assistant\nI look.<|im_end|>" in (
        front.prompt
    )


def test_two_answers_may_go_on_from_one(front: AgentFront) -> None:
    first = made(front)
    turn = front.turn()
    for given in ("one", "two"):
        made(front, previous_response_id=first["id"], input=given)
        assert front.submits()[-1].prompt.tolist()[: len(turn)] == turn


def test_a_stored_response_is_fetched_and_deleted(front: AgentFront) -> None:
    told = made(front)
    path = f"/v1/responses/{told['id']}"
    assert front.http.ask("GET", path).json == told
    streamed = response_of(ask(front, stream=True))
    assert front.http.ask("GET", f"/v1/responses/{streamed['id']}").json == streamed
    deleted = front.http.ask("DELETE", path)
    assert deleted.json == {"id": told["id"], "object": "response", "deleted": True}
    for method in ("GET", "DELETE"):
        assert front.http.ask(method, path).refusal == (404, "response_not_found")
    gone = ask(front, previous_response_id=told["id"])
    assert gone.refusal == (400, "previous_response_not_found")
    unstored = made(front, store=False)
    assert front.http.ask("GET", f"/v1/responses/{unstored['id']}").status == 404


def test_what_a_stored_response_answers_is_listed(front: AgentFront) -> None:
    call = {
        "type": "function_call",
        "call_id": "c",
        "name": "weather",
        "arguments": '{"city": "漢"}',
    }
    sent = [
        {"role": "developer", "content": "kind"},
        {"role": "user", "content": "it"},
        {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "so"}]},
        {"role": "assistant", "content": "I look."},
        call,
        {"type": "function_call_output", "call_id": "c", "output": "rain"},
    ]
    front.say("</think>\n\nfine")
    first = made(front, input=sent)
    second = made(front, previous_response_id=first["id"], input="and now?")

    def listed(name: str, query: str = "") -> dict[str, Any]:
        found: dict[str, Any] = front.http.ask(
            "GET", f"/v1/responses/{name}/input_items{query}"
        ).json
        return found

    whole = listed(first["id"], "?order=asc")
    system, user, thought, said, called, output = whole["data"]
    assert (whole["object"], whole["has_more"]) == ("list", False)
    assert (system["role"], system["content"]) == (
        "system",
        [{"type": "input_text", "text": "kind"}],
    )
    assert (user["role"], user["content"][0]["text"]) == ("user", "it")
    assert thought["content"] == sent[2]["content"]
    assert (said["role"], said["content"][0]["type"]) == ("assistant", "output_text")
    assert (called["name"], json.loads(called["arguments"])) == ("weather", {"city": "漢"})
    assert (output["call_id"], output["output"]) == (called["call_id"], "rain")
    names = [item["id"] for item in listed(second["id"], "?order=asc&limit=100")["data"]]
    assert len(names) == len({*names}) == len(sent) + 2
    pages = []
    page = listed(second["id"], "?limit=3")
    while True:
        pages += [item["id"] for item in page["data"]]
        assert (page["first_id"], page["last_id"]) == (pages[-len(page["data"])], pages[-1])
        if not page["has_more"]:
            break
        page = listed(second["id"], f"?limit=3&after={page['last_id']}")
    assert pages == names[::-1]


@pytest.mark.parametrize(
    ("query", "named"),
    [("limit=0", "limit"), ("limit=many", "limit"), ("order=up", "order"), ("after=x", "after")],
)
def test_a_wrong_page_of_input_items_is_refused_by_name(
    front: AgentFront, query: str, named: str
) -> None:
    path = f"/v1/responses/{made(front)['id']}/input_items"
    reply = front.http.ask("GET", f"{path}?{query}")
    assert (reply.status, reply.error["param"]) == (400, named)
    gone = front.http.ask("GET", "/v1/responses/resp_none/input_items")
    assert gone.refusal == (404, "response_not_found")


def test_a_response_is_its_key_s_alone(codec: TextCodec, tmp_path: Path) -> None:
    config = ServerConfig(api_keys=keys_file(tmp_path, "ann k1\nbob k2\n"))
    with running_agent_front(codec, config) as front:
        told = ask(front, headers("k1")).json
        path = f"/v1/responses/{told['id']}"
        for method in ("GET", "DELETE"):
            assert front.http.ask(method, path, headers=headers("k2")).status == 404
        assert ask(front, headers("k2"), previous_response_id=told["id"]).status == 400
        assert ask(front, headers("k1"), previous_response_id=told["id"]).status == 200


def test_account_fields_at_their_bounds_are_served_and_echoed(front: AgentFront) -> None:
    fields = {
        "user": "漢" * 64,
        "safety_identifier": "x" * 64,
        "prompt_cache_key": "0192f3a4-7c1e-7a30-b0e5-5e1f4c2d9a77",
        "metadata": {f"{number:064}": "漢" * 512 for number in range(16)},
    }
    told = made(front, **fields)
    assert {name: told[name] for name in fields} == fields


def test_a_store_of_no_size_stores_nothing(codec: TextCodec) -> None:
    with running_agent_front(codec, ServerConfig(response_store_mib=0)) as front:
        told = made(front)
        assert front.http.ask("GET", f"/v1/responses/{told['id']}").status == 404


def test_the_tokens_of_a_prompt_are_counted_before_it_is_asked(front: AgentFront) -> None:
    def counted(**fields: Any) -> Reply:
        return front.http.post("/v1/responses/input_tokens", {"input": "it was", **fields})

    first = made(front, tools=[TOOL], instructions="be brief")
    asked = {"previous_response_id": first["id"], "tools": [TOOL], "instructions": "be brief"}
    for fields in ({}, {"tools": [TOOL]}, asked):
        submits = len(front.submits())
        told = counted(**fields).json
        assert len(front.submits()) == submits, "the engine was asked"
        made(front, **fields)
        count = len(front.submits()[-1].prompt)
        assert told == {"object": "response.input_tokens", "input_tokens": count}
    for fields in ({"conversation": 7}, {"input": []}, {"input": "x" * 2**20}):
        assert counted(**fields).status == 400
    assert counted(model="huge").refusal == (404, "model_not_found")


@pytest.mark.parametrize("method", ["GET", "DELETE"])
@pytest.mark.parametrize("name", ["compact", "input_tokens"])
def test_what_openai_has_beside_responses_is_no_response_s_id(
    front: AgentFront, method: str, name: str
) -> None:
    reply = front.http.ask(method, f"/v1/responses/{name}")
    assert reply.refusal == (405, "method_not_allowed")
    assert "ask by POST" in reply.error["message"]
    named = front.http.ask("GET", "/v1/responses/compacted")
    assert named.refusal == (404, "response_not_found")


# --- Refusals


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"input": []}, "input"),
        ({"input": [3]}, "input[0]"),
        ({"text": {"format": {"type": "json_schema", "schema": {"not": {}}}}}, "text.format"),
        ({"stop": ["x"]}, "stop"),
    ],
)
def test_what_is_not_honoured_is_refused_by_name(
    front: AgentFront, fields: dict[str, Any], named: str
) -> None:
    reply = ask(front, **fields)
    assert reply.status == 400
    assert named in reply.error["message"]
