"""Tests of token figures in chats and completions. Each chunk has usage as asked by
`stream_options`, and ids in vLLM's form. Usage also counts the accepted part of a prediction."""

from dataclasses import replace
from typing import Any

import pytest

from tasuki.engine import messages as m
from tasuki.server.openai.token_details import usage
from tasuki.server.text.text_codec import TextCodec
from tests.harness.agent_front import running_agent_front
from tests.harness.grpc_fixtures import Front
from tests.harness.http_calls import Reply
from tests.harness.http_fixtures import HttpFront
from tests.harness.refusals import refusal

EACH = {"include_usage": True, "continuous_usage_stats": True}


@pytest.fixture(autouse=True)
def answer(http: HttpFront, codec: TextCodec) -> None:
    tokens = [*codec.require_tokenizer().encode("fine 漢"), 2]
    http.engine.answer = lambda submit: tokens


def ask(http: HttpFront, kind: str, **fields: Any) -> Reply:
    return (http.chat if kind == "chat" else http.complete)(**fields)


def shown(chunk: dict[str, Any]) -> tuple[int, int]:
    usage = chunk["usage"]
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    return usage["prompt_tokens"], usage["completion_tokens"]


@pytest.mark.parametrize("kind", ["chat", "text"])
def test_each_chunk_has_what_was_used_so_far(http: HttpFront, codec: TextCodec, kind: str) -> None:
    logprobs = True if kind == "chat" else 0
    *chunks, last = ask(http, kind, stream=True, stream_options=EACH, logprobs=logprobs).events
    (submit,) = http.engine.of(m.Submit)
    counts = [shown(chunk) for chunk in chunks]
    assert {prompt for prompt, _ in counts} == {len(submit.prompt)}
    tokens = len(codec.require_tokenizer().encode("fine 漢")) + 1
    first = [0] if kind == "chat" else []
    assert [count for _, count in counts] == [*first, *range(1, tokens + 1), tokens]
    assert last["choices"] == [] and shown(last) == (len(submit.prompt), tokens)


def test_chunks_have_it_where_a_call_in_a_thought_could_be_held_back(codec: TextCodec) -> None:
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
    with running_agent_front(codec) as front:
        front.say("so\n</think>\n\nfine")
        asked = {"messages": [{"role": "user", "content": "it was"}], "tools": [tool]}
        body = {**asked, "stream": True, "stream_options": EACH, "return_token_ids": True}
        *chunks, last = front.http.post("/v1/chat/completions", body).events
        counts = [shown(chunk)[1] for chunk in chunks]
        assert counts == sorted(counts) and counts[-1] == shown(last)[1] > 0
        ids = [token for chunk in chunks for token in chunk["choices"][0].get("token_ids") or ()]
        assert len(ids) == counts[-1]


def test_chunks_of_two_prompts_count_their_own(http: HttpFront) -> None:
    prompts = [[5, 6, 7], [5]]
    asked = {"stream": True, "stream_options": EACH, "n": 2}
    *chunks, last = http.complete(prompt=prompts, **asked).events
    seen = {(chunk["choices"][0]["index"], shown(chunk)[0]) for chunk in chunks}
    assert seen == {(0, 3), (1, 3), (2, 1), (3, 1)}
    assert shown(last)[0] == 4


@pytest.mark.parametrize("kind", ["chat", "text"])
def test_usage_in_each_chunk_alone_asks_for_nothing(http: HttpFront, kind: str) -> None:
    options = {"include_usage": False, "continuous_usage_stats": True, "include_obfuscation": False}
    events = ask(http, kind, stream=True, stream_options=options).events
    assert events and all("usage" not in event for event in events)


@pytest.mark.parametrize("options", [None, {}, {"include_usage": None, "later": None}])
def test_options_that_ask_for_nothing_are_taken(http: HttpFront, options: object) -> None:
    assert http.chat(stream_options=options).status == 200


ASKED = {"return_token_ids": True}
TEXT = "it was fine 漢 and more"


@pytest.fixture
def said(http: HttpFront, codec: TextCodec) -> list[int]:
    """Set the engine's answer and return its tokens."""
    tokens = [*codec.require_tokenizer().encode(TEXT), 2]
    http.engine.answer = lambda submit: tokens
    return tokens


def prompt_of(http: HttpFront) -> list[int]:
    found: list[int] = http.engine.of(m.Submit)[-1].prompt.tolist()
    return found


def test_a_whole_chat_has_the_ids_of_prompt_and_answers(http: HttpFront, said: list[int]) -> None:
    body = http.chat(**ASKED, n=2, max_tokens=100).json
    assert [choice["token_ids"] for choice in body["choices"]] == [said, said]
    assert body["prompt_token_ids"] == prompt_of(http)
    plain = http.chat(max_tokens=100).json
    assert "prompt_token_ids" not in plain and "token_ids" not in plain["choices"][0]


def test_a_whole_completion_has_the_ids_of_each_prompt(http: HttpFront, said: list[int]) -> None:
    body = http.complete(**ASKED, prompt=[[5, 6], [7]], n=2, max_tokens=100).json
    shown = [(choice["prompt_token_ids"], choice["token_ids"]) for choice in body["choices"]]
    assert shown == [([5, 6], said)] * 2 + [([7], said)] * 2
    assert "prompt_token_ids" not in body


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"stop": ["漢 and"]},
        {"stop": ["漢 andy"]},
        {"stream_options": {"include_usage": True, "continuous_usage_stats": True}},
        {"logprobs": 1},
    ],
    ids=["plain", "stopped", "held", "usage", "logprobs"],
)
@pytest.mark.parametrize("kind", ["chat", "text"])
def test_a_stream_has_each_id_once_and_the_prompt_s_first(
    http: HttpFront, codec: TextCodec, said: list[int], kind: str, fields: dict[str, Any]
) -> None:
    asked = {**ASKED, "stream": True, "max_tokens": 100, **fields}
    if kind == "chat":
        asked = asked | ({"logprobs": True} if "logprobs" in fields else {})
    http.engine.hold = fields.get("stop") == ["漢 and"]
    events = (http.chat if kind == "chat" else http.complete)(**asked).events
    choices = [choice for event in events for choice in event["choices"]]
    ids = [token for choice in choices for token in choice.get("token_ids", ())]
    text = codec.require_tokenizer().decode(ids)
    assert said[: len(ids)] == ids
    assert text == "it was fine 漢 and" if http.engine.hold else ids == said
    holders = events if kind == "chat" else choices
    shown = [holder["prompt_token_ids"] for holder in holders if "prompt_token_ids" in holder]
    assert shown == [prompt_of(http)] and "prompt_token_ids" in holders[0]


@pytest.mark.parametrize("stream", [False, True])
def test_logprobs_may_name_tokens_by_their_ids(
    http: HttpFront, codec: TextCodec, said: list[int], stream: bool
) -> None:
    asked = {"return_tokens_as_token_ids": True, "stream": stream, "max_tokens": 100}
    names = [f"token_id:{token}" for token in said]

    def of(reply: Any) -> list[dict[str, Any]]:
        events = reply.events if stream else [reply.json]
        found = [choice["logprobs"] for event in events for choice in event["choices"]]
        return [logprobs for logprobs in found if logprobs]

    chat = of(http.chat(**asked, logprobs=True, top_logprobs=1))
    entries = [entry for part in chat for entry in part["content"]]
    assert [entry["token"] for entry in entries] == names
    first = codec.require_tokenizer().token_bytes(said[0])
    assert bytes(entries[0]["bytes"]) == first
    assert entries[0]["top_logprobs"][0]["token"].startswith("token_id:")
    parts = of(http.complete(**asked, logprobs=1))
    assert [name for part in parts for name in part["tokens"]] == names
    assert {name for part in parts for top in part["top_logprobs"] for name in top} >= {*names}
    offsets = [offset for part in parts for offset in part["text_offset"]]
    assert offsets[1] == len(first.decode())


EACH_FRONT = pytest.mark.usefixtures("each_front")
PREDICTED = "fine morning"


@EACH_FRONT
@pytest.mark.parametrize(
    "content", [PREDICTED, [{"type": "text", "text": "fine "}, {"type": "text", "text": "morning"}]]
)
def test_a_chats_prediction_reaches_the_engine_as_tokens(
    http: HttpFront, codec: TextCodec, content: object
) -> None:
    body = http.chat(prediction={"type": "content", "content": content}).json
    (submit,) = http.engine.of(m.Submit)
    assert submit.prediction.tolist() == codec.require_tokenizer().encode(PREDICTED)
    assert body["usage"]["completion_tokens"] > 0


@EACH_FRONT
def test_without_a_prediction_there_is_none(http: HttpFront) -> None:
    details = http.chat(prediction=None).json["usage"].get("completion_tokens_details", {})
    (submit,) = http.engine.of(m.Submit)
    assert not len(submit.prediction)
    assert "accepted_prediction_tokens" not in details


@EACH_FRONT
def test_usage_has_what_held_in_openais_fields() -> None:
    plain = m.Usage(3, 9, None, None, "local", False, 0.1, 0.2)
    drafted = replace(plain, accepted_prediction_tokens=5, rejected_prediction_tokens=2)
    shown = usage([plain], 9, 4, [plain, drafted, drafted], with_hit=False)
    assert shown["completion_tokens_details"] == {
        "reasoning_tokens": 4,
        "accepted_prediction_tokens": 10,
        "rejected_prediction_tokens": 4,
    }
    first = replace(plain, drafts=(m.DraftUse("mtp", (3, 1), (2, 1)),))
    uses = (m.DraftUse("mtp", (5, 4, 4), (5, 3, 0)), m.DraftUse("tree", (2,), (1,)))
    shown = usage([plain], 9, None, [first, replace(plain, drafts=uses)], with_hit=False)
    assert shown["completion_tokens_details"] == {
        "drafts": {
            "mtp": {"drafted": [8, 5, 4], "accepted": [7, 4, 0]},
            "tree": {"drafted": [2], "accepted": [1]},
        }
    }
    assert "completion_tokens_details" not in usage([plain], 9, None, [plain], with_hit=False)


@EACH_FRONT
def test_generate_takes_tokens(front: Front) -> None:
    list(front.calls.generate(1, 2, prediction=[3, 4, 0]))
    (submit,) = front.engine.of(m.Submit)
    assert submit.prediction.tolist() == [3, 4, 0]
    refused = front.calls.generate(1, prediction=[1] * 1_000_000)
    assert refusal(lambda: list(refused)).message.startswith("prediction has 1000000 tokens")


@EACH_FRONT
@pytest.mark.parametrize("outside", [-1, 1_000_000, 2**31 - 1])
def test_a_prediction_holds_tokens_of_the_model_alone(front: Front, outside: int) -> None:
    refused = front.calls.generate(1, prediction=[3, outside])
    assert refusal(lambda: list(refused)).message.startswith(f"prediction has {outside}, which is")
    assert not front.engine.of(m.Submit)
