"""Tests of the openai client against real daemons with the embedded model, in an agent's use."""

from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from tests.harness.daemons import Node, flags
from tests.harness.running_nodes import HTTP, fused_node, node_pair, refused_start
from tests.harness.sdk_clients import openai, openai_client
from tests.harness.waiting import HANG_SECONDS, until

KEY = "a-key-of-this-test"
SERVED = (*HTTP, "--api-key", KEY)
GREEDY = {"temperature": 0, "max_tokens": 24}
USER = [{"role": "user", "content": "Where does Elizabeth live, and with whom?" * 8}]
STREAM = {
    "model": "embedded",
    "messages": USER,
    "stream": True,
    "stream_options": {"include_usage": True},
}
TOOL = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}


@dataclass
class Front:
    """A client and its nodes. nodes: nodes with a cache for prompts, the front's node first."""

    client: "openai.OpenAI"
    nodes: tuple[Node, ...]

    def usable_tokens(self) -> int:
        return sum(node.stats().tree["usable_tokens"] for node in self.nodes)


def connected(node: Node) -> "openai.OpenAI":
    return openai_client(node.http_address, KEY)


@pytest.fixture(scope="module")
def fused() -> Iterator[Front]:
    with fused_node(*SERVED) as node, connected(node) as client:
        yield Front(client, (node,))


@pytest.fixture(scope="module")
def pair() -> Iterator[Front]:
    pair = node_pair(*SERVED, decode=("--local-prefill-tokens", "16"))
    with pair as (prefill, decode), connected(decode) as client:
        yield Front(client, (decode, prefill))


@pytest.fixture(params=["fused", "pair"])
def front(request: pytest.FixtureRequest) -> Front:
    front: Front = request.getfixturevalue(request.param)
    return front


def test_the_model_is_listed(fused: Front) -> None:
    (model,) = fused.client.models.list().data
    assert model.id == "embedded" and model.max_model_len > 1000


def test_a_second_turn_is_cached_and_the_counter_agrees(front: Front) -> None:
    before = front.usable_tokens()
    chat = front.client.chat.completions.create
    first = chat(model="embedded", messages=USER, **GREEDY)
    said = first.choices[0].message
    assert said.role == "assistant" and said.content
    again = [*USER, {"role": "assistant", "content": said.content}]
    again.append({"role": "user", "content": "Thank you."})
    second = chat(model="embedded", messages=again, extra_headers={"x-tasuki-hit": "1"}, **GREEDY)
    cached = [reply.usage.prompt_tokens_details.cached_tokens for reply in (first, second)]
    assert cached[1] > first.usage.prompt_tokens // 2
    assert second.usage.prompt_tokens_details.hybrid["usable"] == cached[1]
    assert front.usable_tokens() - before == sum(cached)


def test_a_stream_says_the_same_and_ends_with_usage(front: Front) -> None:
    chat = front.client.chat.completions.create
    whole = chat(model="embedded", messages=USER, **GREEDY)
    *chunks, last = list(chat(**STREAM, **GREEDY))
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    assert text == whole.choices[0].message.content
    assert chunks[-1].choices[0].finish_reason == whole.choices[0].finish_reason
    assert last.usage.completion_tokens == whole.usage.completion_tokens
    assert last.usage.prompt_tokens_details.cached_tokens > 0


def test_a_stop_string_ends_an_answer_and_frees_what_it_held(front: Front) -> None:
    complete = front.client.completions.create
    prompt = "It is a truth universally acknowledged"
    whole = complete(model="embedded", prompt=prompt, **GREEDY).choices[0].text
    stop = whole[len(whole) // 2 :][:5]
    choice = complete(model="embedded", prompt=prompt, stop=[stop], **GREEDY).choices[0]
    assert (choice.text, choice.finish_reason) == (whole.partition(stop)[0], "stop")
    for node in front.nodes:
        node.assert_at_rest()


def test_tools_are_accepted(fused: Front) -> None:
    call = {"id": "c", "type": "function", "function": {"name": "weather", "arguments": "{}"}}
    messages = [
        *USER,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": "rain"},
    ]
    reply = fused.client.chat.completions.create(
        model="embedded", messages=messages, tools=[TOOL], tool_choice="auto", **GREEDY
    )
    assert reply.choices[0].message.content is not None


def test_errors_have_the_clients_own_types(fused: Front) -> None:
    chat = fused.client.chat.completions.create
    with pytest.raises(openai.BadRequestError, match="temperature") as caught:
        chat(model="embedded", messages=USER, temperature=-1)
    assert (caught.value.code, caught.value.param) == ("invalid", "temperature")
    with pytest.raises(openai.NotFoundError, match="not served here"):
        chat(model="huge", messages=USER)
    with pytest.raises(openai.AuthenticationError):
        fused.client.with_options(api_key="wrong").models.list()


def test_a_client_that_closes_its_stream_frees_what_it_held(front: Front) -> None:
    stream = front.client.chat.completions.create(
        **STREAM, max_tokens=10_000, extra_body={"ignore_eos": True}
    )
    next(iter(stream))
    assert not front.nodes[0].at_rest()
    stream.close()
    for node in front.nodes:
        node.assert_at_rest()


def test_a_prefill_node_answers_probes_alone(pair: Front) -> None:
    _, prefill = pair.nodes
    with connected(prefill) as client:
        assert client.get("../ready", cast_to=object) == {"status": "ok"}
        with pytest.raises(openai.InternalServerError, match="ask decode nodes") as refused:
            client.models.list()
        assert (refused.value.status_code, refused.value.code) == (501, "not_served_here")


def test_a_drain_lets_the_answer_in_flight_end() -> None:
    patient = ("--drain-timeout", str(HANG_SECONDS))
    with fused_node(*SERVED, *patient) as node, connected(node) as client:
        chat = client.chat.completions.create
        stream = chat(**STREAM, max_tokens=200, extra_body={"ignore_eos": True})
        next(iter(stream))
        node.ask_to_stop()
        until(lambda: refused(client, "../ready"), "still ready")
        assert client.get("../health", cast_to=object) == {"status": "ok"}
        with pytest.raises(openai.InternalServerError) as caught:
            chat(model="embedded", messages=USER, **GREEDY)
        assert (caught.value.status_code, caught.value.code) == (503, "draining")
        *_, last = stream
        assert last.usage.completion_tokens == 200


def refused(client: "openai.OpenAI", path: str) -> bool:
    try:
        client.get(path, cast_to=object)
    except openai.InternalServerError as error:
        return error.status_code == 503
    return False


def test_an_http_port_that_is_taken_is_one_line(fused: Front) -> None:
    last = refused_start("serve", *flags(), "--http-bind", fused.nodes[0].http_address)[-1]
    assert "is the port taken" in last
