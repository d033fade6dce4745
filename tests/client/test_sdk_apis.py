"""Tests of the anthropic and openai clients against a real daemon with the embedded model. They
cover Messages, Responses, and the headers read by both clients."""

from collections.abc import Iterator

import pytest

from tests.harness.daemons import Node
from tests.harness.running_nodes import HTTP, fused_node
from tests.harness.sdk_clients import anthropic, anthropic_client, openai, openai_client

KEY = "a-key-of-this-test"
QUESTION = "Where does Elizabeth live, and with whom?" * 8
USER = [{"role": "user", "content": QUESTION}]
MESSAGE = {"model": "embedded", "max_tokens": 24, "extra_body": {"temperature": 0}}
RESPONSE = {"model": "embedded", "max_output_tokens": 24, "temperature": 0}
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}


@pytest.fixture(scope="module")
def node() -> Iterator[Node]:
    with fused_node(*HTTP, "--api-key", KEY) as running:
        yield running


@pytest.fixture(scope="module")
def messages(node: Node) -> Iterator["anthropic.Anthropic"]:
    with anthropic_client(node.http_address, KEY) as client:
        yield client


@pytest.fixture(scope="module")
def responses(node: Node) -> Iterator["openai.OpenAI"]:
    with openai_client(node.http_address, KEY) as client:
        yield client


def test_a_message_whole_and_streamed(messages: "anthropic.Anthropic") -> None:
    whole = messages.messages.create(messages=USER, **MESSAGE)
    assert whole.id.startswith("msg_") and whole._request_id
    assert whole.stop_reason in ("end_turn", "max_tokens")
    with messages.messages.stream(messages=USER, **MESSAGE) as stream:
        text = "".join(stream.text_stream)
        streamed = stream.get_final_message()
    assert text and [block.text for block in whole.content] == [text]
    assert streamed.stop_reason == whole.stop_reason
    usage = streamed.usage
    assert usage.output_tokens == whole.usage.output_tokens
    assert usage.cache_read_input_tokens > 0
    prompt = usage.input_tokens + usage.cache_read_input_tokens
    counted = messages.messages.count_tokens(messages=USER, model="embedded")
    assert counted.input_tokens == prompt


def test_a_conversation_with_tools(messages: "anthropic.Anthropic") -> None:
    tool = {"name": "weather", "description": "Tells.", "input_schema": SCHEMA}
    use = {"type": "tool_use", "id": "toolu_1", "name": "weather", "input": {"city": "Bath"}}
    result = {"type": "tool_result", "tool_use_id": "toolu_1", "content": "rain"}
    told = messages.messages.create(
        system=[{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}],
        tools=[tool],
        messages=[
            *USER,
            {"role": "assistant", "content": [use]},
            {"role": "user", "content": [result]},
        ],
        **MESSAGE,
    )
    assert told.content


def test_errors_are_anthropic_s_own(messages: "anthropic.Anthropic", node: Node) -> None:
    create = messages.messages.create
    with pytest.raises(anthropic.BadRequestError, match="temperature"):
        create(messages=USER, **{**MESSAGE, "extra_body": {"temperature": -1}})
    with pytest.raises(anthropic.BadRequestError, match="there are no tools"):
        create(messages=USER, tool_choice={"type": "any"}, **MESSAGE)
    with pytest.raises(anthropic.NotFoundError, match="not served here"):
        create(messages=USER, **{**MESSAGE, "model": "huge"})
    with (
        anthropic_client(node.http_address, "wrong") as stranger,
        pytest.raises(anthropic.AuthenticationError),
    ):
        stranger.messages.create(messages=USER, **MESSAGE)


def test_models_are_listed_to_both(
    messages: "anthropic.Anthropic", responses: "openai.OpenAI"
) -> None:
    (theirs,) = messages.models.list().data
    (ours,) = responses.models.list().data
    assert theirs.id == theirs.display_name == ours.id == "embedded"
    assert messages.models.retrieve("embedded").id == "embedded"


def test_a_response_whole_and_streamed(responses: "openai.OpenAI") -> None:
    whole = responses.responses.create(input=QUESTION, **RESPONSE)
    assert whole.output_text and whole._request_id
    with responses.responses.stream(input=QUESTION, **RESPONSE) as stream:
        events = list(stream)
    kinds, streamed = [event.type for event in events], events[-1].response
    assert kinds[:2] == ["response.created", "response.in_progress"]
    assert "response.output_text.delta" in kinds
    assert streamed.output_text == whole.output_text
    assert streamed.usage.input_tokens_details.cached_tokens > 0
    assert streamed.usage.output_tokens == whole.usage.output_tokens


def test_a_response_is_gone_on_from(responses: "openai.OpenAI") -> None:
    create = responses.responses.create
    first = create(input=QUESTION, **RESPONSE)
    second = create(input="And then?", previous_response_id=first.id, **RESPONSE)
    before = first.usage.total_tokens
    assert second.usage.input_tokens_details.cached_tokens >= before - 1
    assert responses.responses.retrieve(second.id).output_text == second.output_text
    responses.responses.delete(first.id)
    with pytest.raises(openai.NotFoundError):
        responses.responses.retrieve(first.id)
    with pytest.raises(openai.BadRequestError, match="not stored here"):
        create(input="And then?", previous_response_id=first.id, **RESPONSE)


def test_a_response_with_tools(responses: "openai.OpenAI") -> None:
    tool = {"type": "function", "name": "weather", "parameters": SCHEMA, "strict": True}
    call = {
        "type": "function_call",
        "call_id": "c",
        "name": "weather",
        "arguments": '{"city": "Bath"}',
    }
    output = {"type": "function_call_output", "call_id": "c", "output": "rain"}
    told = responses.responses.create(
        instructions="Be brief.", input=[*USER, call, output], tools=[tool], **RESPONSE
    )
    assert told.output
    with pytest.raises(openai.BadRequestError, match='must be "auto", "none"'):
        responses.responses.create(input=USER, tools=[tool], tool_choice="always", **RESPONSE)
