"""`stream_options` of chats and completions: usage in each chunk, and refusals by name."""

from typing import Any

import pytest

from tasuki.engine import messages as m
from tasuki.server.text.text_codec import TextCodec
from tests.harness.agent_front import running_agent_front
from tests.harness.http_calls import Reply
from tests.harness.http_fixtures import HttpFront

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
