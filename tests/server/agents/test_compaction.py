"""Tests of POST /v1/responses/compact over a scripted engine: the items kept, the summary, and its
way back."""

import base64
from typing import Any

import pytest

from tasuki.server.text.text_codec import TextCodec
from tests.harness.agent_front import CALL, SCHEMA, AgentFront, running_agent_front
from tests.harness.http_calls import Reply

PATH = "/v1/responses/compact"
TOOL = {"type": "function", "name": "weather", "description": "the end", "parameters": SCHEMA}
SUMMARY = "It was fine."
CONVERSATION = [
    {"role": "developer", "content": "be brief"},
    {"role": "user", "content": "it was"},
    {"role": "assistant", "content": "so"},
    {"role": "user", "content": "and then"},
    {"role": "assistant", "content": "the end"},
]


@pytest.fixture(autouse=True)
def answer(front: AgentFront) -> None:
    front.say(SUMMARY)


def compacted(front: AgentFront, **fields: Any) -> Reply:
    return front.http.post(PATH, {"model": "tiny", **fields})


def made(front: AgentFront, **fields: Any) -> dict[str, Any]:
    reply = compacted(front, **fields)
    assert reply.status == 200, reply
    found: dict[str, Any] = reply.json
    return found


def said(output: list[dict[str, Any]]) -> list[tuple[str, str]]:
    """Return the role and text of each message before the compaction item."""
    *messages, last = output
    assert last["type"] == "compaction"
    return [(item["role"], item["content"][0]["text"]) for item in messages]


def test_questions_stay_and_a_summary_stands_for_the_rest(front: AgentFront) -> None:
    told = made(front, input=CONVERSATION)
    assert told["object"] == "response.compaction" and told["id"].startswith("resp_")
    assert said(told["output"]) == [
        ("developer", "be brief"),
        ("user", "it was"),
        ("user", "and then"),
    ]
    submit = front.submits()[-1]
    assert "the end<|im_end|>\n<|im_start|>user\nSummarise" in front.prompt
    usage = told["usage"]
    assert usage["input_tokens"] == len(submit.prompt)
    assert usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"]
    assert 0 < submit.sampling.max_new_tokens <= 4096 and submit.sampling.temperature == 0
    ids = [item["id"] for item in told["output"]]
    assert len({*ids}) == len(ids) and ids[-1].startswith("cmp_")


def test_a_response_goes_on_from_what_was_compacted(front: AgentFront) -> None:
    output = made(front, input=CONVERSATION)["output"]
    asked = {"role": "user", "content": "go on"}
    assert front.http.post("/v1/responses", {"input": [*output, asked]}).status == 200
    prompt = front.prompt
    assert prompt.startswith("<|im_start|>system\nbe brief<|im_end|>")
    places = [prompt.index(text) for text in ("it was", "and then", SUMMARY, "go on")]
    assert places == sorted(places) and "the end" not in prompt
    # A second summary also covers the first one's text.
    again = made(front, input=[*output, asked])["output"]
    assert SUMMARY in front.prompt
    assert [text for _, text in said(again)] == ["be brief", "it was", "and then", "go on"]


def test_a_summary_has_no_thoughts_and_no_calls(front: AgentFront) -> None:
    front.say(f"{SUMMARY}\n\n{CALL}")
    output = made(front, input=CONVERSATION, tools=[TOOL])["output"]
    sent = base64.b64decode(output[-1]["encrypted_content"].removeprefix("tasuki.compaction."))
    assert sent[8:].decode() == SUMMARY
    assert front.prompt.endswith("</think>\n\n")
    front.say(CALL)
    refused = compacted(front, input=CONVERSATION, tools=[TOOL])
    assert refused.refusal == (500, "no_summary")


def test_a_stored_response_is_gone_on_from_token_by_token(front: AgentFront) -> None:
    asked = {"tools": [TOOL], "instructions": "be brief"}
    first = front.http.post("/v1/responses", {"input": "it was", **asked}).json
    turn = front.turn()
    told = made(front, previous_response_id=first["id"], **asked)
    assert front.submits()[-1].prompt[: len(turn)].tolist() == turn
    assert said(told["output"]) == [("user", "it was")]
    missing = compacted(front, previous_response_id="resp_none", input="so")
    assert missing.refusal == (400, "previous_response_not_found")


def test_of_a_conversation_that_is_too_long_the_newer_part_is_summarised(
    codec: TextCodec,
) -> None:
    with running_agent_front(codec, max_tokens=1 << 10) as front:
        front.say(SUMMARY)
        turns = [
            {"role": role, "content": f"it was {turn} " * 8}
            for turn in range(40)
            for role in ("user", "assistant")
        ]
        told = made(front, input=turns)
        submit = front.submits()[-1]
        assert len(submit.prompt) + submit.sampling.max_new_tokens <= 1 << 10
        assert "it was 39 " in front.prompt and "it was 0 " not in front.prompt
        texts = [text for _, text in said(told["output"])]
        assert texts[-1].startswith("it was 39 ") and len("".join(texts)) <= 1 << 10
        refused = compacted(front, input="it was " * 2000)
        assert refused.refusal == (400, "context_length_exceeded")


def test_an_item_that_was_not_made_here_is_refused(front: AgentFront) -> None:
    item = made(front, input=CONVERSATION)["output"][-1]
    content = item["encrypted_content"]
    half = len(content) // 2
    other = "A" if content[half] != "A" else "B"
    wrong: list[object] = [
        *(None, 7, "", "gAAAAAB", "tasuki.compaction.", "tasuki.compaction.!", content[:-4]),
        *("tasuki.text.c28=", content[:half] + other + content[half + 1 :], content + "\ud800"),
        "tasuki.compaction." + base64.b64encode(b"\xff" * 20).decode(),
    ]
    for value in wrong:
        forged = [{**item, "encrypted_content": value}, {"role": "user", "content": "so"}]
        for path in ("/v1/responses", PATH):
            refused = front.http.post(path, {"input": forged})
            assert refused.status == 400, (value, refused)
            assert refused.error["param"] in ("input[0].encrypted_content", None)


def test_a_summary_that_is_cut_by_its_length_is_one(front: AgentFront) -> None:
    front.end_by_length()
    assert made(front, input=CONVERSATION)["output"][-1]["type"] == "compaction"
