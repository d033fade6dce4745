"""POST /v1/completions over a scripted engine: prompts of each kind, logprobs, streams."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from tasuki.engine import messages as m
from tasuki.server.config import ServerConfig
from tasuki.server.text.text_codec import TextCodec
from tests.harness.http_calls import Reply
from tests.harness.http_fixtures import HttpFront, running_http

KEYS = {"one": "1" * 32, "two": "2" * 32}


@pytest.fixture
def http(http: HttpFront, codec: TextCodec) -> HttpFront:
    """Let the engine answer "fine 漢" to each request."""
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
    # The token itself is among them if no others are requested, as in vLLM.
    assert [len(entry) for entry in told["top_logprobs"]] == [1] * count
    assert told["top_logprobs"][0] == {told["tokens"][0]: -0.5}
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
        (["a", ""], "prompt is empty"),
        ([[1], []], "prompt is empty"),
        (["a", 1], "mixes token ids with prompts"),
        ([[1], [320]], "outside the vocabulary"),
        ([[["a"]]], "prompt must hold token ids, not ['a']"),
        ([[1], ["a"]], "prompt must hold token ids, not 'a'"),
        ([[1]] * 1025, "prompt holds 1025 prompts"),
        ([1.5], "must hold token ids, not 1.5"),
        ([1, 2, -1.0], "must hold token ids, not -1.0"),
        ([1, 2.0**31], "must hold token ids, not 2147483648.0"),
        ([1.0, 10**400], "must hold token ids, not 1000"),
        ([1.0, True], "must hold token ids, not True"),
        ([True], "token ids"),
        ([-1], "token ids"),
        ([2**40], "token ids"),
        ([320], "outside the vocabulary"),
        ({"a": 1}, "prompt must be a string, a list"),
    ],
)
def test_a_bad_prompt_is_refused(http: HttpFront, prompt: Any, part: str) -> None:
    reply = http.complete(prompt=prompt)
    assert reply.status == 400 and part in reply.error["message"]
    assert reply.error["param"] == "prompt"


def test_a_token_id_may_be_written_with_a_fraction_of_zero(http: HttpFront) -> None:
    body: dict[str, Any] = {"prompt": [5.0, 6], "return_token_ids": True, "stop_token_ids": [7.0]}
    (choice,) = http.complete(**body).json["choices"]
    assert choice["prompt_token_ids"] == [5, 6]
    told = [http.post("/detokenize", {"tokens": tokens}).json for tokens in ([5.0, 6], [5, 6])]
    assert told[0] == told[1] and told[0]["prompt"]


LISTS: list[Any] = [["it", "was", "it"], [[5], [6, 7], [8]], ["it", [5, 6], "was"]]


def echoes(http: HttpFront, codec: TextCodec) -> list[str]:
    """Let the engine answer each prompt with one token more than the prompt has. Return the
    answers' texts by prompt length."""
    tokens = codec.require_tokenizer().encode("fine morning")
    http.engine.answer = lambda submit: tokens[: len(submit.prompt) + 1]
    return [codec.require_tokenizer().decode(tokens[: count + 1]) for count in range(8)]


@pytest.mark.parametrize("prompts", LISTS)
def test_a_list_of_prompts_is_one_reply_of_choices_in_order(
    http: HttpFront, codec: TextCodec, prompts: list[Any]
) -> None:
    texts = echoes(http, codec)
    body = http.complete(prompt=prompts, headers={"x-request-id": "list"}).json
    submits = http.engine.of(m.Submit)
    lengths = [len(submit.prompt) for submit in submits]
    assert [submit.request_id for submit in submits] == ["list", "list-1", "list-2"]
    assert [choice["index"] for choice in body["choices"]] == [0, 1, 2]
    assert [choice["text"] for choice in body["choices"]] == [texts[count] for count in lengths]
    assert {choice["finish_reason"] for choice in body["choices"]} == {"stop"}
    usage = body["usage"]
    assert usage["prompt_tokens"] == sum(lengths)
    assert usage["completion_tokens"] == sum(lengths) + 3
    assert usage["prompt_tokens_details"] == {"cached_tokens": 2 * 3}


@pytest.mark.parametrize("prompts", LISTS)
def test_a_stream_of_a_list_has_chunks_of_every_choice_and_one_end(
    http: HttpFront, codec: TextCodec, prompts: list[Any]
) -> None:
    texts = echoes(http, codec)
    asked = {"stream": True, "stream_options": {"include_usage": True}}
    reply = http.complete(prompt=prompts, **asked)
    assert reply.body.count(b"[DONE]") == 1
    *chunks, last = reply.events
    lengths = [len(submit.prompt) for submit in http.engine.of(m.Submit)]
    for index, count in enumerate(lengths):
        own = [chunk["choices"][0] for chunk in chunks if chunk["choices"][0]["index"] == index]
        assert "".join(choice["text"] for choice in own) == texts[count]
        assert [choice["finish_reason"] for choice in own if choice["finish_reason"]] == ["stop"]
    assert last["choices"] == [] and last["usage"]["completion_tokens"] == sum(lengths) + 3


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_ends_every_choice(http: HttpFront, stream: bool) -> None:
    http.engine.hold = True
    connection = http.begin(prompt=[[5], [6], [7]], stream=stream)
    submits = http.engine.wait_for(m.Submit, 3)
    connection.close()
    http.engine.wait_aborted([submit.request_id for submit in submits])


def test_what_the_engine_refuses_of_one_prompt_ends_the_whole_reply(http: HttpFront) -> None:
    http.engine.hold = True
    deliver = http.engine.deliver
    refused = m.RequestError(m.ErrorKind.TOO_LONG, "too long for this arena")

    def refuse_last(message: m.Outbox) -> None:
        if isinstance(message, m.TokenOut) and message.request_id.endswith("-2"):
            message = m.Rejected(message.request_id, refused)
        deliver(message)

    http.engine.deliver = refuse_last
    reply = http.complete(prompt=[[5], [6], [7]])
    assert reply.status == 400 and "this arena" in reply.error["message"]
    aborted = {abort.request_id for abort in http.engine.wait_for(m.Abort, 2)}
    assert len(aborted) == 2


def test_each_prompt_of_a_list_counts(codec: TextCodec, tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text(f"one {KEYS['one']} caller\ntwo {KEYS['two']} caller\n")
    config = ServerConfig(api_keys=str(keys), requests_per_key=3, requests_per_minute=5)
    with running_http(codec, config) as http:

        def ask(count: int) -> Reply:
            bearer = {"Authorization": f"Bearer {KEYS['one']}"}
            return http.complete(headers=bearer, prompt=[[5]] * count)

        assert (many := ask(4)).status == 429 and "asks for 4 at once" in many.error["message"]
        assert not http.engine.of(m.Submit)
        assert ask(3).status == 200
        assert (again := ask(2)).status == 429 and "5 requests a minute" in again.error["message"]
        assert len(http.engine.of(m.Submit)) == 3


def test_an_answer_may_have_no_token(http: HttpFront) -> None:
    http.engine.answer = lambda submit: []
    body = http.complete(max_tokens=0).json
    assert body["choices"][0]["text"] == "" and body["usage"]["completion_tokens"] == 0
    (submit,) = http.engine.of(m.Submit)
    assert submit.sampling.max_new_tokens == 0
    assert http.chat(max_tokens=0).status == 400


def text_of(codec: TextCodec, tokens: list[int]) -> list[str]:
    return [codec.require_tokenizer().decode([token]) for token in tokens]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("new", [0, 3])
@pytest.mark.parametrize("prompt", ["it<|im_end|> was", [5, 6, 2]])
def test_the_prompt_is_echoed_before_the_answer(
    http: HttpFront, codec: TextCodec, prompt: Any, new: int, stream: bool
) -> None:
    tokens = codec.require_tokenizer().encode("fine")
    http.engine.answer = lambda submit: tokens[: submit.sampling.max_new_tokens]
    reply = http.complete(prompt=prompt, echo=True, max_tokens=new, stream=stream)
    shown = prompt if isinstance(prompt, str) else codec.require_tokenizer().decode(prompt)
    choices = [event["choices"][0] for event in reply.events] if stream else reply.json["choices"]
    answer = codec.require_tokenizer().decode(tokens[:new])
    assert "".join(choice["text"] for choice in choices) == shown + answer
    (submit,) = http.engine.of(m.Submit)
    assert submit.prompt_logprobs is None and submit.sampling.max_new_tokens == new


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("top", [0, 2])
@pytest.mark.parametrize("new", [0, 1])
def test_an_echoed_prompt_has_its_logprobs(
    http: HttpFront, codec: TextCodec, top: int, new: int, stream: bool
) -> None:
    http.engine.answer = lambda submit: [9] * submit.sampling.max_new_tokens
    prompt = [[40, 41, 42], [50]]
    reply = http.complete(
        prompt=prompt, echo=True, logprobs=top, max_tokens=new, stream=stream, temperature=0
    )
    parts: dict[int, dict[str, list[Any]]] = {}
    for event in reply.events if stream else [reply.json]:
        for choice in event["choices"]:
            for name, values in (choice["logprobs"] or {}).items():
                parts.setdefault(choice["index"], {}).setdefault(name, []).extend(values)
    assert {submit.prompt_logprobs for submit in http.engine.of(m.Submit)} == {top}
    for index, tokens in enumerate(prompt):
        told = parts[index]
        texts = text_of(codec, tokens + [9] * new)
        assert told["tokens"] == texts
        assert (
            told["token_logprobs"]
            == [None, *(-place for place in range(1, len(tokens)))] + [-0.5] * new
        )
        assert told["text_offset"] == [len("".join(texts[:place])) for place in range(len(texts))]
        assert told["top_logprobs"][0] is None
    likeliest = parts[0]["top_logprobs"][1]
    named = text_of(codec, [42, 43])
    others = {named[0]: -0.25, named[1]: -0.5} if top else {}
    assert likeliest == {**others, text_of(codec, [41])[0]: -1.0}


@pytest.mark.parametrize("top", [0, 2])
def test_prompt_logprobs_as_vllm_has_them(http: HttpFront, codec: TextCodec, top: int) -> None:
    texts = text_of(codec, [41, 42, 43])
    own = {"logprob": -1.0, "rank": 1, "decoded_token": texts[0]}
    others = {
        str(42 + place): {
            "logprob": -0.25 * (place + 1),
            "rank": place + 1,
            "decoded_token": texts[1 + place],
        }
        for place in range(top)
    }
    body = http.complete(prompt=[[40, 41], [50]], prompt_logprobs=top).json
    assert [choice["prompt_logprobs"] for choice in body["choices"]] == [
        [None, {"41": own, **others}],
        [None],
    ]
    assert body["choices"][0]["logprobs"] is None
    chat = http.chat(prompt_logprobs=top).json
    (*_, submit) = http.engine.of(m.Submit)
    assert len(chat["prompt_logprobs"]) == len(submit.prompt)
    assert chat["prompt_logprobs"][0] is None and len(chat["prompt_logprobs"][1]) == 1 + top
    assert http.chat(prompt_logprobs=top, stream=True).error["param"] == "prompt_logprobs"


def test_the_likeliest_tokens_and_the_drawn_one(http: HttpFront, codec: TextCodec) -> None:
    tokens = codec.require_tokenizer().encode("fine")
    told = http.complete(logprobs=20, temperature=1).json["choices"][0]["logprobs"]
    named = [codec.require_tokenizer().decode([tokens[0] + place]) for place in range(20)]
    assert told["top_logprobs"][0][named[0]] == -0.5
    assert set(told["top_logprobs"][0]) == set(named)


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
