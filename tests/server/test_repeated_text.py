"""Tests of requests in which a short part makes a long one count many times. They are read once, or
refused by their field."""

import time
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasuki.model.grammar.grammar import MAX_SOURCE_BYTES
from tasuki.model.ops.sampling.params import MAX_ALLOWED_TOKENS, MAX_BIASES
from tasuki.proto import inference_pb2 as pb
from tasuki.server.errors import InvalidField, InvalidRequest
from tasuki.server.grpc.cache_messages import read_node_name
from tasuki.server.grpc.generate_messages import read_sampling
from tasuki.server.openai.request_fields import RequestFields
from tasuki.server.responses.tools import MAX_NAMESPACE, read_response_tools
from tasuki.server.text.chat_message import ChatMessage, ConversationBuilder
from tasuki.server.text.chat_renderer import MAX_TOOLS
from tasuki.server.text.grammars.call_grammar import CallGrammar, OfferedTool
from tasuki.server.text.grammars.structural_tag import _Shortest, of_structural_tag
from tests.harness.grpc_fixtures import TOKENS_ONLY


def forced(parameters: Any) -> str:
    function = {"name": "f", "parameters": parameters}
    tool = OfferedTool({"type": "function", "function": function}, strict=True)
    return CallGrammar("tools", [tool], in_tags=True, many=False).forced().source


# --- Schemas of tools


def test_definitions_that_each_parameter_repeats_are_refused_once_they_are_too_long() -> None:
    names = [f"k{number}" for number in range(1000)]
    parameters = {
        "$defs": {"d": {"description": "a" * 100_000}},
        "properties": {name: {"type": "integer"} for name in names},
    }
    with pytest.raises(InvalidField, match=f"over {MAX_SOURCE_BYTES} bytes"):
        forced(parameters)


@pytest.mark.parametrize("branches", [1, 2, 30])
def test_a_definition_that_refers_to_itself_is_refused(branches: int) -> None:
    again = [{"$ref": "#/$defs/d"} for _ in range(branches)]
    parameters = {"$defs": {"d": {"anyOf": again}}, "properties": {"a": {"$ref": "#/$defs/d"}}}
    with pytest.raises(InvalidField, match=r"refers to itself|more than once"):
        forced(parameters)


def test_definitions_that_double_are_refused_in_less_than_a_second() -> None:
    chain = {
        f"d{at}": {"anyOf": [{"$ref": f"#/$defs/d{at + 1}"}, {"$ref": f"#/$defs/d{at + 1}"}]}
        for at in range(40)
    }
    definitions = {**chain, "d40": {"type": "string", "pattern": "a"}}
    parameters = {"$defs": definitions, "properties": {"a": {"$ref": "#/$defs/d0"}}}
    began = time.process_time()
    with pytest.raises(InvalidField, match="nests or refers to itself"):
        forced(parameters)
    assert time.process_time() - began < 1


def test_a_definition_may_be_referred_to_by_many_parameters() -> None:
    either = {"anyOf": [{"type": "string", "pattern": "a"}, {"type": "null"}]}
    names = [f"k{number}" for number in range(500)]
    parameters = {
        "$defs": {"d": either},
        "properties": {name: {"$ref": "#/$defs/d"} for name in names},
    }
    assert forced(parameters).count("null") == 500


def test_a_parameter_that_is_required_twice_is_written_once() -> None:
    parameters = {"properties": {"a": {"type": "string"}}, "required": ["b", "a", "b", 7]}
    source = forced(parameters)
    assert source.count("<parameter=a>") == source.count("<parameter=b>") == 1


# --- Structural tags


@given(
    texts=st.lists(st.text("ab", min_size=1, max_size=4), min_size=1, max_size=8),
    text=st.text("ab", max_size=8),
)
def test_the_shortest_of_the_triggers_that_begin_a_tag_is_found(
    texts: list[str], text: str
) -> None:
    expected = min((item for item in texts if text.startswith(item)), key=len, default=None)
    assert _Shortest(texts).that_begins(text) == expected


def test_a_structural_tag_names_its_triggers_once() -> None:
    names = [f"<t{number:04}>" for number in range(200)]
    tags = [{"begin": name, "content": {"type": "any_text"}, "end": "e"} for name in names]
    form = {"type": "triggered_tags", "triggers": names, "tags": tags}
    source = of_structural_tag("tag", {"type": "structural_tag", "format": form}).source
    # Once in the list excluded from free text, and once before its tag.
    assert source.count("t0007") == 2


# --- Conversations


def test_reminders_behind_a_message_are_joined_as_one_by_one() -> None:
    builder = ConversationBuilder()
    builder.user("?")
    for text in ("so", "<system-reminder>it</system-reminder>"):
        builder.system(text)
    reminder = "<system-reminder>\nso\n</system-reminder>"
    expected = f"?\n{reminder}\n<system-reminder>it</system-reminder>"
    assert builder.messages == [ChatMessage("user", expected)]
    builder.system("was")
    builder.user("!")
    assert builder.messages[0].content.startswith(expected) and "was" in builder.messages[0].content
    assert builder.messages[1:] == [ChatMessage("user", "!")]


def test_reminders_behind_a_long_message_copy_it_once() -> None:
    long = "a" * (8 << 20)

    def seconds(reminders: int) -> float:
        builder = ConversationBuilder()
        builder.user(long)
        began = time.process_time()
        for _ in range(reminders):
            builder.system("so")
        assert len(builder.messages[0].content) > len(long)
        return time.process_time() - began

    # A copy for each took more than a second.
    assert min(seconds(1000) for _ in range(3)) < 0.2


# --- Names


def namespace(name: str, tools: int) -> RequestFields:
    inner = [{"type": "function", "name": f"f{number}"} for number in range(tools)]
    return RequestFields({"tools": [{"type": "namespace", "name": name, "tools": inner}]})


def test_a_namespace_has_a_short_name() -> None:
    assert len(read_response_tools(namespace("n" * MAX_NAMESPACE, 3)).offered) == 3
    with pytest.raises(InvalidField, match=r"tools\[0\]\.name may have at most 256"):
        read_response_tools(namespace("n" * (MAX_NAMESPACE + 1), 3))


def test_the_tools_of_namespaces_are_counted_as_they_are_read() -> None:
    assert len(read_response_tools(namespace("n", MAX_TOOLS)).offered) == MAX_TOOLS
    with pytest.raises(InvalidField, match="at most 1024"):
        read_response_tools(namespace("n", MAX_TOOLS + 1))


@pytest.mark.parametrize("name", ["1" * 5000 + ".1", "1." + "1" * 5000, f"{2**31}.1", f"1.{2**64}"])
def test_a_node_s_name_of_too_many_digits_is_refused(name: str) -> None:
    with pytest.raises(InvalidField, match="which no node is called"):
        read_node_name(name)


# --- Sampling over gRPC


def test_what_names_too_many_tokens_is_refused_before_it_is_copied() -> None:
    biases = pb.Sampling(logit_bias={number: 1.0 for number in range(MAX_BIASES + 1)})
    allowed = pb.Sampling(allowed_token_ids=np.zeros(MAX_ALLOWED_TOKENS + 1, dtype=np.int32))
    for sampling, most in ((biases, MAX_BIASES), (allowed, MAX_ALLOWED_TOKENS)):
        with pytest.raises(
            InvalidRequest, match=f"must hold at most {most} tokens, not {most + 1}"
        ):
            read_sampling(sampling, TOKENS_ONLY)
