"""Tests of n > 1 in chats and completions over a scripted engine. The choices of one prompt have
their own seeds, and their stream chunks interleave. Usage counts the prompt once."""

from pathlib import Path
from typing import Any

import pytest

from tasuki.engine import messages as m
from tasuki.server.config import ServerConfig
from tasuki.server.text.text_codec import TextCodec
from tests.harness.http_fixtures import HttpFront, running_http
from tests.harness.waiting import until

pytestmark = pytest.mark.usefixtures("each_front")

KEYS = {"one": "1" * 32, "two": "2" * 32}
KINDS = ["chat", "complete"]


@pytest.fixture
def http(http: HttpFront, codec: TextCodec) -> HttpFront:
    """Let the engine answer each choice with one token more than its seed exceeds 40."""
    tokens = codec.require_tokenizer().encode("fine morning")
    http.engine.answer = lambda submit: tokens[: submit.sampling.seed - 40 + 1]
    return http


def texts(codec: TextCodec, count: int) -> list[str]:
    tokens = codec.require_tokenizer().encode("fine morning")
    return [codec.require_tokenizer().decode(tokens[: place + 1]) for place in range(count)]


def text_in(choice: dict[str, Any]) -> str:
    return choice.get("text") or (choice.get("message") or choice.get("delta") or {}).get(
        "content", ""
    )


@pytest.mark.parametrize("kind", KINDS)
def test_choices_of_one_prompt_have_seeds_that_follow_each_other(
    http: HttpFront, codec: TextCodec, kind: str
) -> None:
    body = getattr(http, kind)(n=3, seed=40, headers={"x-request-id": "it"}).json
    (submit,) = http.engine.of(m.Submit)
    assert submit.answer_ids == ("it", "it-1", "it-2")
    assert [submit.sampling.seed, *(fork.seed for fork in submit.forks)] == [40, 41, 42]
    assert [choice["index"] for choice in body["choices"]] == [0, 1, 2]
    assert [text_in(choice) for choice in body["choices"]] == texts(codec, 3)
    assert {choice["finish_reason"] for choice in body["choices"]} == {"stop"}
    usage = body["usage"]
    assert usage["prompt_tokens"] == len(submit.prompt)
    assert usage["completion_tokens"] == 1 + 2 + 3
    assert usage["total_tokens"] == len(submit.prompt) + 6
    assert usage["prompt_tokens_details"] == {"cached_tokens": 2}


@pytest.mark.parametrize("kind", KINDS)
def test_a_stream_has_chunks_of_every_choice_and_one_end(
    http: HttpFront, codec: TextCodec, kind: str
) -> None:
    asked = {"stream": True, "stream_options": {"include_usage": True}, "n": 3, "seed": 40}
    reply = getattr(http, kind)(**asked)
    assert reply.body.count(b"[DONE]") == 1
    *chunks, last = reply.events
    for index, text in enumerate(texts(codec, 3)):
        own = [chunk["choices"][0] for chunk in chunks if chunk["choices"][0]["index"] == index]
        assert "".join(map(text_in, own)) == text
        assert [choice["finish_reason"] for choice in own if choice["finish_reason"]] == ["stop"]
        if kind == "chat":
            assert own[0]["delta"]["role"] == "assistant"
    assert last["usage"]["completion_tokens"] == 6


def test_choices_of_a_list_follow_their_prompt(http: HttpFront, codec: TextCodec) -> None:
    body = http.complete(prompt=[[5], [6, 7]], n=2, seed=40).json
    assert [choice["index"] for choice in body["choices"]] == [0, 1, 2, 3]
    assert [choice["text"] for choice in body["choices"]] == texts(codec, 2) * 2
    assert body["usage"]["prompt_tokens"] == 3 and body["usage"]["completion_tokens"] == 6
    submits = http.engine.of(m.Submit)
    assert [submit.prompt.tolist() for submit in submits] == [[5], [6, 7]]
    assert len({name for submit in submits for name in submit.answer_ids}) == 4


def test_a_choice_that_meets_its_stop_string_ends_alone(http: HttpFront, codec: TextCodec) -> None:
    tokens = codec.require_tokenizer().encode("fine morning")
    http.engine.answer = lambda submit: tokens if submit.sampling.seed == 40 else tokens[:1]
    body = http.complete(n=2, seed=40, stop=["morn"]).json
    first, second = body["choices"]
    assert first["text"] == "fine " and second["text"] == texts(codec, 1)[0]
    until(lambda: bool(http.engine.of(m.Abort)), "no abort, which may come behind the reply")
    (aborted,) = {abort.request_id for abort in http.engine.of(m.Abort)}
    assert aborted == http.engine.of(m.Submit)[0].request_id


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_ends_every_choice(http: HttpFront, stream: bool) -> None:
    http.engine.hold = True
    connection = http.begin(n=3, seed=40, stream=stream)
    (submit,) = http.engine.wait_for(m.Submit)
    connection.close()
    http.engine.wait_aborted(submit.answer_ids)


def test_each_choice_has_the_prompt_s_scores_and_echo(http: HttpFront) -> None:
    asked = {"prompt": [40, 41], "n": 2, "seed": 40, "prompt_logprobs": 0}
    for choice in http.complete(**asked, echo=True, logprobs=0).json["choices"]:
        assert [place and list(place) for place in choice["prompt_logprobs"]] == [None, ["41"]]
        assert choice["logprobs"]["token_logprobs"][:2] == [None, -1.0]
    assert len(http.chat(n=2, seed=40, prompt_logprobs=0).json["choices"]) == 2


def test_each_choice_counts_against_the_cap(codec: TextCodec, tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text(f"one {KEYS['one']} caller\ntwo {KEYS['two']} caller\n")
    config = ServerConfig(api_keys=str(keys), requests_per_key=3, requests_per_minute=2)
    with running_http(codec, config) as http:
        bearer = {"Authorization": f"Bearer {KEYS['one']}"}
        assert (many := http.chat(headers=bearer, n=4)).status == 429
        assert "asks for 4 at once" in many.error["message"] and not http.engine.of(m.Submit)
        # A prompt counts as one request of the minute, with any number of choices.
        assert http.chat(headers=bearer, n=3).status == 200


def test_best_of_as_many_as_are_given_asks_for_nothing(http: HttpFront) -> None:
    assert len(http.complete(n=2, best_of=2, seed=40).json["choices"]) == 2
    assert http.complete(prompt=[[5]] * 100, n=11).error["param"] == "n"


def test_the_last_seed_of_all_is_followed_by_the_first(http: HttpFront) -> None:
    http.engine.answer = lambda submit: []
    http.complete(n=2, seed=2**63 - 1)
    (submit,) = http.engine.of(m.Submit)
    assert [fork.seed for fork in submit.forks] == [-(2**63)]
