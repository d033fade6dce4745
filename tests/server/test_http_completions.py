"""POST /v1/completions over a scripted engine: prompts of each kind, logprobs, streams."""

from typing import Any

import msgspec
import pytest

from tasuki.engine import messages as m
from tasuki.server.text.text_codec import TextCodec
from tests.harness.http_fixtures import HttpFront, running_http


@pytest.fixture
def http(http: HttpFront, codec: TextCodec) -> HttpFront:
    """It answers "fine 漢"."""
    tokens = [*codec.require_tokenizer().encode("fine 漢"), 2]
    http.engine.answer = lambda submit: tokens
    return http


@pytest.mark.parametrize("prompt", ["it<|im_end|>", ["it<|im_end|>"], [5, 6, 2], [[5, 6, 2]]])
def test_prompts_of_each_kind(http: HttpFront, codec: TextCodec, prompt: Any) -> None:
    body = http.complete(prompt=prompt).json
    assert body["object"] == "text_completion" and body["id"].startswith("cmpl-")
    (choice,) = body["choices"]
    assert (choice["text"], choice["finish_reason"]) == ("fine 漢", "stop")
    (submit,) = http.engine.of(m.Submit)
    text = "it<|im_end|>" in (prompt, prompt[0])
    wanted = codec.require_tokenizer().encode("it<|im_end|>") if text else [5, 6, 2]
    assert submit.prompt.tolist() == wanted and submit.sampling.max_new_tokens == 16


def test_a_stream(http: HttpFront) -> None:
    *chunks, last = http.complete(stream=True, stream_options={"include_usage": True}).events
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == "fine 漢"
    assert chunks[-1]["choices"][0]["finish_reason"] == "stop"
    assert last["usage"]["prompt_tokens"] == 3
    assert last["usage"]["prompt_tokens_details"]["cached_tokens"] == 2


@pytest.mark.parametrize("top", [0, 1])
def test_logprobs(http: HttpFront, codec: TextCodec, top: int) -> None:
    told = http.complete(logprobs=top, temperature=0).json["choices"][0]["logprobs"]
    count = len(codec.require_tokenizer().encode("fine 漢")) + 1
    assert told["token_logprobs"] == [-0.5] * count and len(told["tokens"]) == count
    assert [len(entry) for entry in told["top_logprobs"]] == [top] * count
    assert told["text_offset"][:2] == [0, len(told["tokens"][0])]
    streamed = http.complete(logprobs=top, temperature=0, stream=True).events
    parts = [chunk["choices"][0]["logprobs"] for chunk in streamed]
    tokens = [token for part in parts if part for token in part["tokens"]]
    assert tokens == told["tokens"]


@pytest.mark.parametrize(
    ("prompt", "part"),
    [
        (None, "prompt must be"),
        ("", "prompt is empty"),
        ([], "prompt is empty"),
        (["a", "b"], "one string or one list"),
        ([[1], [2]], "one string or one list"),
        ([[["a"]]], "one string or one list"),
        ([1.5], "token ids"),
        ([True], "token ids"),
        ([-1], "token ids"),
        ([2**40], "token ids"),
        ([320], "outside the vocabulary"),
        ({"a": 1}, "one string or one list"),
    ],
)
def test_a_bad_prompt_is_refused(http: HttpFront, prompt: Any, part: str) -> None:
    reply = http.complete(prompt=prompt)
    assert reply.status == 400 and part in reply.error["message"]


def test_the_likeliest_tokens_and_the_drawn_one(http: HttpFront, codec: TextCodec) -> None:
    tokens = codec.require_tokenizer().encode("fine")
    told = http.complete(logprobs=20, temperature=1).json["choices"][0]["logprobs"]
    named = [codec.require_tokenizer().decode([tokens[0] + place]) for place in range(20)]
    assert told["top_logprobs"][0][named[0]] == -0.5
    assert set(told["top_logprobs"][0]) == set(named)


@pytest.mark.parametrize(
    "fields", [{"echo": True}, {"best_of": 3}, {"logprobs": 21}, {"suffix": "x"}]
)
def test_what_cannot_be_honoured_is_refused(http: HttpFront, fields: dict[str, Any]) -> None:
    reply = http.complete(**fields)
    assert reply.status == 400 and reply.error["param"] == next(iter(fields))


def test_without_a_tokenizer_token_ids_still_work() -> None:
    with running_http() as http:
        assert http.complete(prompt=[5]).status == 200
        for path, body in (
            ("/v1/completions", {"prompt": "text"}),
            ("/v1/chat/completions", {"messages": [{"role": "user", "content": "text"}]}),
        ):
            reply = http.post(path, body)
            assert reply.status == 400 and "tokenizer.json" in reply.error["message"]


@pytest.mark.parametrize("logprob", [float("nan"), float("-inf"), float("inf")])
def test_no_answer_holds_what_json_has_no_word_for(
    http: HttpFront, monkeypatch: pytest.MonkeyPatch, logprob: float
) -> None:
    deliver = http.engine.deliver

    def garbled(message: m.Outbox) -> None:
        if isinstance(message, m.TokenOut):
            message = msgspec.structs.replace(message, logprob=logprob)
        deliver(message)

    monkeypatch.setattr(http.engine, "deliver", garbled)
    asked = {"temperature": 0, "logprobs": 1}
    told = http.complete(**asked).body + http.complete(**asked, stream=True).body
    told += http.chat(temperature=0, logprobs=True, top_logprobs=1).body
    assert b"-9999.0" in told and b"NaN" not in told and b"Infinity" not in told
