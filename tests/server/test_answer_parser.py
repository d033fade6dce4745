"""Tests of an answer's reasoning, content and tool calls, with its text cut at any place."""

import json
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasuki.engine.messages import FinishReason, RequestId, TokenOut
from tasuki.server.openai.chat import ChatReply
from tasuki.server.openai.reply import ReplyHead
from tasuki.server.text.json_reading import JsonDepth
from tasuki.server.text.parsing.answer_parser import MOST_HELD, AnswerParser
from tasuki.server.text.parsing.parameter_types import json_of, json_types, parameter_schemas
from tasuki.server.text.stop_strings import StopRule, StopStrings
from tasuki.server.text.text_answer import (
    CallArguments,
    Content,
    Ending,
    Piece,
    Reasoning,
    Thinking,
)
from tests.harness import answer_pieces
from tests.harness.answer_pieces import (
    BY_ITSELF,
    BY_LENGTH,
    BY_STOP,
    Call,
    Parsed,
    cut,
    parsed,
)
from tests.harness.grpc_fixtures import usage

SCHEMA = {"properties": {"city": {"type": "string"}, "days": {"type": "integer"}}}
TOOLS = [{"type": "function", "function": {"name": "weather", "parameters": SCHEMA}}]
AS_JSON = '<tool_call>\n{"name": "weather", "arguments": {"city": "<b>", "days": 2}}\n</tool_call>'
AS_XML = (
    "<tool_call>\n<function=weather>\n<parameter=city>\n7\n</parameter>\n"
    "<parameter=days>\n2\n</parameter>\n</function>\n</tool_call>"
)
CUTS = st.lists(st.integers(0, 999), max_size=12)
every_cut = partial(answer_pieces.every_cut, tools=TOOLS)


def written(*values: tuple[str, str], name: str = "weather") -> str:
    """Return a call in XML."""
    parameters = "".join(f"<parameter={key}>\n{text}\n</parameter>\n" for key, text in values)
    return f"<tool_call>\n<function={name}>\n{parameters}</function>\n</tool_call>"


def hermes(arguments: str, name: str = "weather") -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


# --- Reasoning


@pytest.mark.parametrize(
    ("thinking", "text", "reasoning", "content"),
    [
        (Thinking.OPENED, "so\n</think>\n\nfine", "so", "fine"),
        (Thinking.OPENED, "\n so it \n was \n</think>\n\n fine \n", "so it \n was", "fine \n"),
        (Thinking.OPENED, "so</think>fine</think> and", "so", "fine</think> and"),
        (Thinking.OPENED, "</think>\n\nfine", "", "fine"),
        (Thinking.OPENED, "so it was", "so it was", ""),
        (Thinking.OPENED, "so it </thin", "so it </thin", ""),
        (Thinking.OPENED, "so \n", "so \n", ""),
        (Thinking.OPENED, "so\n</think>\n\n", "so", ""),
        (Thinking.OPENED, "", "", ""),
        (Thinking.OPENED, "<think>\nso\n</think>\n\nfine", "so", "fine"),
        (Thinking.OPENED, "<think>", "", ""),
        (Thinking.OPENED, "<thi", "<thi", ""),
        (Thinking.ALLOWED, "<think>\nso\n</think>\n\nfine", "so", "fine"),
        (Thinking.ALLOWED, "\n<think>so", "so", ""),
        (Thinking.ALLOWED, " fine <think>so</think>", "", " fine <think>so</think>"),
        (Thinking.ALLOWED, " <thin", "", " <thin"),
        (Thinking.NEVER, "<think>so</think> fine", "", "<think>so</think> fine"),
    ],
)
def test_reasoning_ends_at_the_first_closing_tag(
    thinking: Thinking, text: str, reasoning: str, content: str
) -> None:
    assert every_cut(text, thinking=thinking) == Parsed(reasoning, content, ())


@given(cuts=CUTS)
def test_no_call_is_made_that_was_only_thought_of(cuts: list[int]) -> None:
    text = f"I could {AS_XML} but no {AS_JSON}\n</think>\n\n"
    found = parsed(cut(text + "No.", cuts), TOOLS, Thinking.OPENED)
    assert found == Parsed(f"I could {AS_XML} but no {AS_JSON}", "No.", ())
    found = parsed(cut(text + AS_XML, cuts), TOOLS, Thinking.OPENED)
    assert [call.value for call in found.calls] == [{"city": "7", "days": 2}]


def test_a_tag_behind_a_call_of_an_unclosed_thought_comes_once() -> None:
    found = parsed([f"so {AS_JSON} and <tool_call>"], TOOLS, Thinking.OPENED)
    assert (found.reasoning, found.content.strip()) == ("so", "and <tool_call>")


@given(cuts=CUTS)
def test_a_tag_that_was_only_mentioned_swallows_no_call(cuts: list[int]) -> None:
    thought = "I will use <tool_call> now"
    text = f"{thought}\n</think>\n\nAs <tool_call> says: {AS_XML}"
    found = parsed(cut(text, cuts), TOOLS, Thinking.OPENED)
    call = Call("weather", '{"city": "7", "days": 2}')
    assert found == Parsed(thought, "As <tool_call> says:", (call,))


def test_a_tag_that_was_only_mentioned_holds_nothing_back() -> None:
    parser = AnswerParser(Thinking.OPENED, TOOLS)
    for text in ("I will use <tool_call> now", "</think>\n\nAs <tool_call> says"):
        items = parser.push(Piece(text, None))
        assert text.endswith(items[-1].text)  # type: ignore[union-attr]


# --- Calls in an unclosed thought


@pytest.mark.parametrize("call", [AS_XML, AS_JSON])
@pytest.mark.parametrize("parallel", [True, False])
def test_a_call_in_a_thought_that_never_closes_is_a_call(call: str, parallel: bool) -> None:
    text = f"I will look.\n{call}\n{call} So"
    found = every_cut(text, thinking=Thinking.OPENED, parallel_calls=parallel)
    assert (found.reasoning, len(found.calls)) == ("I will look.", 2 if parallel else 1)
    assert found.content == (" So" if parallel else "")
    (opened,) = every_cut(f"<think>\nso {call}", thinking=Thinking.ALLOWED).calls
    assert opened.name == "weather"


@given(cuts=CUTS)
def test_a_call_in_a_thought_that_closes_later_is_thought(cuts: list[int]) -> None:
    thought = f"a <tool_call>no {AS_XML}\n\n<tool_call>\n{{\n and {AS_JSON} <tool"
    for behind in ("", "Yes.", AS_XML):
        found = parsed(cut(f"{thought}\n</think>\n\n{behind}", cuts), TOOLS, Thinking.OPENED)
        assert found.reasoning == thought
        assert len(found.calls) == (behind == AS_XML)


def test_tokens_of_a_call_in_an_open_thought_are_no_reasoning() -> None:
    parser = AnswerParser(Thinking.OPENED, TOOLS)
    token = TokenOut(RequestId("a"), 5, -0.5, 1.5, 0)
    for text in ["I", " look", "\n", "<tool_call>", *AS_XML.removeprefix("<tool_call>")]:
        parser.push(Piece(text, token))
    parser.finish(BY_ITSELF)
    ending = parser.ending(Ending(FinishReason.STOP, 3 + len(AS_XML), usage(5, 1)))
    assert (ending.reasoning_tokens, ending.awaits_tools) == (3, True)


def test_what_is_held_of_a_thought_has_a_bound() -> None:
    parser = AnswerParser(Thinking.OPENED, TOOLS)
    parser.push(Piece("so <tool_call>\n<function=weather>\n<parameter=city>\n", None))
    given = 0
    for _ in range(2 * MOST_HELD // 4096):
        for item in parser.push(Piece("abcd" * 1024, None)):
            assert isinstance(item, Reasoning)
            given += len(item.text)
    assert given > MOST_HELD
    assert all(isinstance(item, Reasoning) for item in parser.finish(BY_ITSELF))


def test_what_is_held_of_a_thought_is_counted_in_a_stream_too() -> None:
    parser = AnswerParser(Thinking.OPENED, TOOLS)
    reply = ChatReply(ReplyHead("a", "m"), parser, None, with_logprobs=False, streamed=True)
    reply.push(Piece("so <tool_call>\n<function=weather>\n<parameter=city>\n", None))
    reply.push(Piece("a" * 1000, None))
    assert reply.keeps and reply.kept_bytes >= 4000
    reply.push(Piece("</think>", None))
    assert reply.kept_bytes == 0


# --- Stop strings


@pytest.mark.parametrize(
    ("stop", "content", "calls"),
    [
        ("so", "fine\n\nend", 2),
        ("</think>", "fine\n\nend", 2),
        ("tool", "fine\n\nend", 2),
        ("Bath", "fine\n\nend", 2),
        ("weather", "fine\n\nend", 2),
        (">", "fine\n\nend", 2),
        ("fine\n<", "fine\n\nend", 2),
        ("ne", "fi", 0),
        ("fine ", "", 0),
        (" \n", "fine", 0),
        ("end", "fine\n\n", 2),
        ("e \n\ne", "fine\n\nend", 2),
    ],
)
def test_stop_strings_are_looked_for_in_the_content_alone(
    stop: str, content: str, calls: int
) -> None:
    call = AS_XML.replace("7", "Bath so")
    text = f"so it</think>\n\nfine \n{call}\n{call}\n\nend"
    found = every_cut(text, thinking=Thinking.OPENED, stops=StopRule((stop,)))
    assert (found.reasoning, len(found.calls)) == ("so it", calls)
    assert found.content == content


@given(
    text=st.lists(
        st.sampled_from([AS_XML, AS_JSON, "<tool_call>", "\n", " ", "a", "b", "</think>", "<"]),
        max_size=9,
    ).map("".join),
    stops=st.lists(st.text("ab\n <", min_size=1, max_size=4), min_size=1, max_size=3),
    cuts=CUTS,
    kept=st.booleans(),
)
def test_stop_strings_end_the_same_content_wherever_it_is_cut(
    text: str, stops: list[str], cuts: list[int], kept: bool
) -> None:
    rule = StopRule(tuple(stops), kept)
    for thinking in Thinking:
        found = parsed(cut(text, cuts), TOOLS, thinking, stops=rule)
        assert found == parsed([text], TOOLS, thinking, stops=rule)
        if not kept and len(found.calls) < 1:
            assert not any(stop in found.content for stop in stops)


@given(text=st.text("ab\n<", max_size=20), stops=st.lists(st.text("ab\n<", min_size=1, max_size=4)))
def test_stops_of_an_answer_that_is_all_content_are_those_of_its_text(
    text: str, stops: list[str]
) -> None:
    scanner = StopStrings(stops)
    plain = scanner.push(text) + scanner.finish()
    assert parsed([text], TOOLS, stops=StopRule(tuple(stops))).content == plain
    parser = AnswerParser(Thinking.NEVER, TOOLS, stops=StopRule(tuple(stops)))
    for count, letter in enumerate(text, 1):
        parser.push(Piece(letter, None))
        scanner = StopStrings(stops)
        scanner.push(text[:count])
        # A letter that may begin a tag is examined once it is known to begin none.
        if letter != "<":
            assert parser.complete == (scanner.found is not None)


def test_stop_strings_are_not_looked_for_in_the_text_of_the_least_tokens() -> None:
    parser = AnswerParser(Thinking.NEVER, TOOLS, stops=StopRule(("a",), min_tokens=2))
    token = TokenOut(RequestId("a"), 5, -0.5, 1.5, 0)
    items = [item for text in "aaba" for item in parser.push(Piece(text, token))]
    assert "".join(item.text for item in items if isinstance(item, Content)) == "aab"
    assert parser.complete


# --- Calls


@given(cuts=CUTS)
def test_calls_in_both_spellings_come_out_wherever_the_text_is_cut(cuts: list[int]) -> None:
    found = parsed(cut(f"Let me look. \n{AS_JSON}\n{AS_XML}\n", cuts), TOOLS)
    assert found == Parsed(
        "",
        "Let me look.",
        (
            Call("weather", '{"city": "<b>", "days": 2}'),
            Call("weather", '{"city": "7", "days": 2}'),
        ),
    )


@pytest.mark.parametrize(
    "text",
    [
        "<tool_call>no</tool_call> and <tool",
        "<tool_call>[1]</tool_call>",
        '<tool_call>{"name": 1}</tool_call>',
        '<tool_call>{"arguments": {"a": 1}}</tool_call>',
        '<tool_call>{"name": "f", "arguments": 5}</tool_call>',
        '<tool_call>{"name" "f"}</tool_call>',
        "<tool_call>{name: f}</tool_call>",
        "<tool_call>\n<function=\n></tool_call>",
        "a <tool_call> that never ends \n",
        "a <tool_call>",
        '<tool_call>{"name": "weat',
        "<tool_call>\n<functio",
    ],
)
def test_what_is_no_call_stays_text(text: str) -> None:
    assert every_cut(text) == Parsed("", text, ())


def test_without_tools_nothing_is_held_back() -> None:
    assert parsed([AS_JSON]) == Parsed("", AS_JSON, ())


def test_a_call_behind_what_is_none_is_made() -> None:
    found = every_cut(f"<tool_call>no {AS_XML}")
    assert (found.content, len(found.calls)) == ("<tool_call>no", 1)


NASTY = [
    "x",
    "",
    "\n",
    "a\n\n",
    '"quoted" \\ and \\n',
    "漢字 \u2028 \x00",
    "<parameter></parameter>",
    "a\n</parameter>\nb",
    "</tool_call>",
    "a</tool_call>\n<tool_call>",
    "</function>\n",
    "<parameters>\n</function>\n</parameter>",
    "</parameter>\n</function>\nno end",
    "see\n<parameter=city>\nBath\n</parameter>\n",
    "</parameter>\n<parameter=\n>",
    "<function=x>",
    "nul",
    "null",
    "</para",
]


@pytest.mark.parametrize("value", NASTY)
def test_a_string_survives_whatever_it_holds(value: str) -> None:
    found = every_cut(written(("city", value), ("days", "2")))
    assert [call.value for call in found.calls] == [{"city": value, "days": 2}]
    assert found.content == "" and not found.calls[0].is_cut


@pytest.mark.parametrize("value", NASTY)
def test_a_string_in_json_survives_whatever_it_holds(value: str) -> None:
    arguments = json.dumps({"city": value}, ensure_ascii=False)
    assert every_cut(hermes(arguments)).calls == (Call("weather", arguments),)


@pytest.mark.parametrize(
    ("text", "arguments"),
    [
        ('{"arguments": {"a": 1}, "name": "weather"}', '{"a": 1}'),
        ('{"id": 7, "name": "weather", "more": [{"a": "}"}], "arguments": {}}', "{}"),
        ('{"name": "weather"}', "{}"),
        ('{"name": "weather", "arguments": null}', "{}"),
        ('{"name": "weather", "arguments": "{\\"a\\": 1}"}', '{"a": 1}'),
        ('{"name": "weather", "arguments": {"a": 1}', '{"a": 1}'),
        ('{"name":"weather","arguments":{"a":[1,{"b":"]}"}]}}', '{"a":[1,{"b":"]}"}]}'),
        ('{"name": "weather", "arguments": {"a": 1}, oh', '{"a": 1}'),
        ('{"name": "weather", "arguments": {"a": "x', '{"a": "x"}'),
    ],
)
def test_json_calls_as_models_write_them(text: str, arguments: str) -> None:
    found = every_cut(f"<tool_call>\n{text}\n</tool_call>\n{AS_XML}")
    assert [(call.name, call.is_cut) for call in found.calls] == [("weather", False)] * 2
    assert found.calls[0].arguments == arguments


@pytest.mark.parametrize(
    ("body", "value"),
    [
        ("<function=weather>\n</function>\n", {}),
        ("<function=weather></function>", {}),
        ("<function=weather><parameter=city>Bath</parameter></function>", {"city": "Bath"}),
        ("<function=weather>\n<parameter=city>\nBath\n</function>\n", {"city": "Bath"}),
        ("<function=weather>\n<parameter=city>\nBath\n</parameter>\n", {"city": "Bath"}),
        (
            "\n\n<function= weather >\n\n oh \n<parameter= city >\nBath\n</parameter>\n</function>",
            {"city": "Bath"},
        ),
    ],
)
def test_xml_calls_as_models_write_them(body: str, value: dict[str, Any]) -> None:
    found = every_cut(f"<tool_call>\n{body}</tool_call>\n{AS_JSON}")
    assert [(call.name, call.is_cut) for call in found.calls] == [("weather", False)] * 2
    assert found.calls[0].value == value and found.content == ""


@pytest.mark.parametrize(
    ("text", "cut", "ended"),
    [
        (
            '<tool_call>\n{"name": "weather", "arguments": {"city": "Ba',
            {"city": "Ba"},
            {"city": "Ba"},
        ),
        ("<tool_call>\n<function=weather>\n<parameter=city>\nBa", {"city": "Ba"}, {"city": "Ba"}),
        (
            "<tool_call>\n<function=weather>\n<parameter=city>\nBa\n</par",
            {"city": "Ba"},
            {"city": "Ba"},
        ),
        ("<tool_call>\n<function=weather>\n<parameter=days>\n2", {}, {"days": 2}),
        ('<tool_call>\n{"name": "weather", "arguments": {"days": 2', {}, {"days": 2}),
        ("<tool_call>\n<function=weather>\n<parameter=days>\n", {}, {}),
        ("<tool_call>\n<function=weather>\n", {}, {}),
    ],
)
def test_a_call_that_the_answer_s_end_leaves_open_is_closed(
    text: str, cut: dict[str, Any], ended: dict[str, Any]
) -> None:
    for ending, value in ((BY_LENGTH, cut), (BY_STOP, cut), (BY_ITSELF, ended)):
        (call,) = every_cut(text, ending=ending).calls
        assert (call.value, call.is_cut) == (value, ending is not BY_ITSELF)


@pytest.mark.parametrize("text", [AS_XML.removesuffix("\n</tool_call>"), AS_XML[:-3]])
def test_a_call_that_lacks_its_last_tag_is_whole(text: str) -> None:
    (call,) = every_cut(text).calls
    assert call == Call("weather", '{"city": "7", "days": 2}')


@pytest.mark.parametrize("first", [AS_XML, AS_JSON])
def test_one_call_is_enough_where_one_was_asked_for(first: str) -> None:
    text = f"so {first}\n{AS_XML} and more"
    found = every_cut(text, parallel_calls=False)
    assert (found.content, len(found.calls)) == ("so", 1)


@pytest.mark.parametrize(
    "before",
    [
        '<tool_call>\n{"name": "weather", "arguments": {"city": "',
        "<tool_call>\n<function=weather>\n<parameter=city>\n",
    ],
)
def test_arguments_come_as_they_are_written(before: str) -> None:
    """Hold back at most as many letters as a closing tag has."""
    parser = AnswerParser(Thinking.NEVER, TOOLS)
    parser.push(Piece(before, None))
    given = 0
    for count in range(1, 200):
        items = parser.push(Piece("ab\n" if count % 5 else "<xy", None))
        given += sum(len(item.json) for item in items if isinstance(item, CallArguments))
        assert given >= 3 * count - len("\n</parameter>")


# --- Types


def test_parameters_without_a_schema_are_json_where_they_can_be() -> None:
    text = written(("a", '{"b": 1}'), ("c", "x\ny"), name="f")
    assert parsed([text], TOOLS).calls[0].value == {"a": {"b": 1}, "c": "x\ny"}


def test_a_parameter_that_nests_too_deeply_stays_text() -> None:
    deep = "[" * 99 + "]" * 99
    assert parsed([written(("a", deep), name="f")], TOOLS).calls[0].value == {"a": deep}


OPTIONAL = {"anyOf": [{"type": "string"}, {"type": "null"}]}


_LONG = "1," * 20_000 + "1]"
_NO_VALUES = {
    "nested too deeply": "[" * 66 + "]" * 65 + "," + _LONG,
    "a number of thousands of digits": "[" + "9" * 8192 + "," + _LONG,
    "cut off": "[" + _LONG[:-1],
}


@pytest.mark.parametrize("length", [1, 7, 1 << 20])
def test_a_long_list_is_a_list_however_it_comes(length: int) -> None:
    text = "[" * 64 + "]" * 63 + r',"a]\"[[",' + _LONG
    assert _long_value(text, length) == json.loads(text)


@pytest.mark.parametrize("text", _NO_VALUES.values(), ids=_NO_VALUES)
def test_a_long_text_that_json_would_refuse_is_a_string(text: str) -> None:
    assert _long_value(text, 5) == text


def _long_value(text: str, length: int) -> Any:
    whole = written(("a", text), name="f")
    tools = [{"type": "function", "function": {"name": "f"}}]
    pieces = [whole[at : at + length] for at in range(0, len(whole), length)]
    (call,) = parsed(pieces, tools).calls
    return call.value["a"]


@pytest.mark.parametrize(
    ("schema", "text", "value"),
    [
        ({"type": "string"}, "5", "5"),
        ({"type": "string"}, "null", "null"),
        ({"type": "str"}, "5", "5"),
        (OPTIONAL, "null", None),
        (OPTIONAL, "5", "5"),
        (OPTIONAL, "nullable", "nullable"),
        (OPTIONAL, "none", "none"),
        ({"type": ["string", "null"]}, "null", None),
        ({"type": "string", "nullable": True}, "null", None),
        ({"type": ["integer", "null"]}, "None", None),
        ({"type": "integer"}, "5", 5),
        ({"type": "integer"}, " 5.0 ", 5),
        ({"type": "integer"}, "five", "five"),
        ({"type": "integer"}, "5.5", "5.5"),
        ({"type": "number"}, "5", 5),
        ({"type": "number"}, "-1e3", -1000.0),
        ({"type": "number"}, "1e999", "1e999"),
        ({"type": "number"}, "NaN", "NaN"),
        ({"type": "boolean"}, "true", True),
        ({"type": "boolean"}, "False", False),
        ({"type": "boolean"}, "yes", "yes"),
        ({"type": "array"}, "[1, 2]", [1, 2]),
        ({"type": "array"}, "['a', None]", ["a", None]),
        ({"items": {}}, "[1]", [1]),
        ({"type": "object"}, '{"a": {"b": null}}', {"a": {"b": None}}),
        ({"type": "object"}, "{'a': True}", {"a": True}),
        ({"properties": {}}, "{'a': 1}", {"a": 1}),
        ({"type": "object"}, "{1, 2}", "{1, 2}"),
        ({"enum": ["a", "5"]}, "5", "5"),
        ({"enum": [1, "a"]}, "1", 1),
        ({"enum": [1, "a"]}, "a", "a"),
        ({"enum": ["a", None]}, "null", None),
        ({"const": 3}, "3", 3),
        ({"type": ["string", "integer"]}, "7", 7),
        ({"type": ["string", "integer"]}, "7a", "7a"),
        ({"oneOf": [{"type": "integer"}, {"type": "array"}]}, "[7]", [7]),
        ({"allOf": [{"type": ["string", "integer"]}, {"type": "integer"}]}, "7", 7),
        ({"$ref": "#/$defs/Day"}, "7", "7"),
        ({"$ref": "#/$defs/Self"}, "7", 7),
        ({"$ref": "elsewhere"}, "7", 7),
        ({"type": "no such"}, "7", 7),
        ({"type": 5}, '"x"', "x"),
        ({}, '"x"', "x"),
        (None, "[1", "[1"),
    ],
)
def test_a_value_has_the_type_of_its_schema(schema: Any, text: str, value: Any) -> None:
    definitions = {"Day": {"type": "string"}, "Self": {"$ref": "#/$defs/Self"}}
    parameters = {"properties": {"a": schema}, "$defs": definitions}
    tools = [{"type": "function", "function": {"name": "f", "parameters": parameters}}]
    schemas = parameter_schemas("f", tools)
    depth = JsonDepth()
    depth.add(text)
    assert json.loads(json_of(text, json_types(schemas["a"], schemas), depth)) == value
    for pieces in ([written(("a", text), name="f")], list(written(("a", text), name="f"))):
        (call,) = parsed(pieces, tools).calls
        assert call.value == {"a": value} and type(call.value["a"]) is type(value)
