"""Token ids in replies, as vLLM shows them: `return_token_ids`, `return_tokens_as_token_ids`."""

from typing import Any

import pytest

from tasuki.engine import messages as m
from tasuki.server.text.text_codec import TextCodec
from tests.harness.http_fixtures import HttpFront

ASKED = {"return_token_ids": True}
TEXT = "it was fine 漢 and more"


@pytest.fixture
def said(http: HttpFront, codec: TextCodec) -> list[int]:
    """The tokens of its answers."""
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
