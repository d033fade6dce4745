"""Tests of the parser's cost per token of an answer: it is the same, however much text is held
back."""

import json
import tracemalloc
from typing import Any

import pytest

from tasuki.server.text.json_reading import MAX_DEPTH
from tasuki.server.text.parsing.answer_parser import AnswerParser
from tasuki.server.text.parsing.parameter_types import ANY, ParameterTypes, json_types
from tasuki.server.text.text_answer import Piece, Thinking
from tests.harness.answer_pieces import Call, Parsed, parsed

PROPERTIES = {
    "city": {"type": "string"},
    "days": {"type": "integer"},
    "note": {"type": ["string", "null"]},
}
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"properties": PROPERTIES}}}]
JSON, XML = "<tool_call>{", "<tool_call><function=f>"
SPACE = " " * 64
MOST_BYTES = 24
"""Bytes of memory for each letter of a text held back."""

SHAPES = {
    "arguments before the name": (JSON + '"arguments": {"a":[', "[],"),
    "text before the name": (JSON + '"arguments": "', "a\\n"),
    "list of an unknown key": (JSON + '"x": [1,', "[],"),
    "text of an unknown key": (JSON + '"x": "', "ab"),
    "name": (JSON + '"name": "', "a"),
    "key": (JSON + '"', "a"),
    "word": (JSON + '"x": ', "1"),
    "keys": (JSON, '"a": 1,'),
    "space before a key": (JSON, SPACE),
    "space before a value": (JSON + '"x":', SPACE),
    "space behind the tag": ("<tool_call>", SPACE),
    "space behind a call": (JSON + '"name":"f"}', SPACE),
    "space in content": ("x", SPACE),
    "half tags": ("x", "<tool_"),
    "brackets of arguments": (JSON + '"name":"f","arguments":{"a":', "[[]"),
    "calls in an unclosed list": ("", '<tool_call>{"x":['),
    "calls in an unclosed text": ("", '<tool_call>{"x":[\\"'),
    "text of a parameter": (XML + "<parameter=city>", "ab"),
    "number of a parameter": (XML + "<parameter=days>", "1" * 64),
    "space that may be null": (XML + "<parameter=note>", SPACE),
    "space behind a parameter": (XML + "<parameter=city>x</parameter>", SPACE),
    "space behind a function": (XML + "<parameter=city>x</parameter></function>", SPACE),
    "closing tags": (XML + "<parameter=city>x", "</parameter>\n"),
    "space before reasoning": ("", SPACE),
    "space in reasoning": ("x", SPACE),
}


def pushed(parser: AnswerParser, before: str, unit: str, count: int) -> None:
    for text in (before, *[unit] * count):
        parser.push(Piece(text, None))


@pytest.mark.parametrize("shape", SHAPES)
def test_text_held_back_takes_little_more_memory_than_its_letters(shape: str) -> None:
    before, unit = SHAPES[shape]
    parser = AnswerParser(Thinking.OPENED if "reasoning" in shape else Thinking.NEVER, TOOLS)
    count = 1 + 60_000 // max(len(unit), 10)
    tracemalloc.start()
    try:
        pushed(parser, before, unit, count)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak <= MOST_BYTES * count * len(unit) + 50_000


# --- Bounds


def hermes(body: str) -> str:
    return f"<tool_call>{body}</tool_call>"


def every_cut(text: str) -> Parsed:
    """Return the parts of a text; check for the same parts letter by letter."""
    whole = parsed([text], TOOLS)
    assert parsed(list(text), TOOLS) == whole
    return whole


@pytest.mark.parametrize(
    "body",
    [
        '{"name": "%s", "arguments": {}}',
        '{"arguments": {}, "name": "%s"}',
        '{"%s": 1, "name": "f", "arguments": {}}',
    ],
)
def test_a_name_or_key_over_the_longest_is_no_call(body: str) -> None:
    longest = hermes(body % ("n" * 256))
    assert len(every_cut(longest).calls) == 1
    over = hermes(body % ("n" * 257))
    assert every_cut(over) == Parsed("", over, ())


@pytest.mark.parametrize("brackets", ["[]", "{}"])
def test_only_arguments_may_nest_deeper_than_the_most_levels(brackets: str) -> None:
    def nested(depth: int) -> str:
        opening = '{"b": ' if brackets == "{}" else "["
        return opening * depth + "1" + brackets[1] * depth

    def with_value(depth: int) -> str:
        return hermes(f'{{"x": {nested(depth)}, "name": "f", "arguments": {{}}}}')

    assert len(every_cut(with_value(MAX_DEPTH)).calls) == 1
    over = with_value(MAX_DEPTH + 1)
    assert every_cut(over) == Parsed("", over, ())
    deep = f'{{"a": {nested(99)}}}'
    for body in (f'{{"name": "f", "arguments": {deep}}}', f'{{"arguments": {deep}, "name": "f"}}'):
        assert every_cut(hermes(body)).calls == (Call("f", deep),)


def test_a_call_is_found_in_the_text_of_one_that_proved_to_be_none() -> None:
    call = hermes('{"name": "f", "arguments": {}}')
    found = every_cut(f'<tool_call>{{"x": "{call}')
    assert found == Parsed("", '<tool_call>{"x": "', (Call("f", "{}"),))


def test_text_that_proved_to_be_no_call_is_not_read_for_ever() -> None:
    """Put each opening tag inside the text of the unclosed call before it."""
    text = '<tool_call>{"x":[\\"' * 30
    call = hermes('{"name": "f", "arguments": {}}')
    found = every_cut(f"{text}\n</tool_call>{call}")
    assert found == Parsed("", f"{text}\n</tool_call>", (Call("f", "{}"),))


@pytest.mark.parametrize("spaces", [256, 257])
def test_tags_far_from_each_other_are_part_of_a_value(spaces: int) -> None:
    between = "</parameter>" + " " * spaces
    (call,) = every_cut(f"{XML}<parameter=city>\nBath{between}</function></tool_call>").calls
    assert call.value == {"city": "Bath" if spaces == 256 else f"Bath{between}"}


# --- Types


def test_a_schema_too_large_to_be_looked_at_allows_every_type() -> None:
    schema: dict[str, Any] = {"enum": list(range(2000))}
    assert json_types(schema, {}) == ANY
    assert json_types({"enum": list(range(200))}, {}) == {"integer"}


def test_the_first_tool_of_a_name_gives_its_parameters_types() -> None:
    second = {"type": "function", "function": {"name": "f", "parameters": {"properties": {}}}}
    types = ParameterTypes([*TOOLS, second])
    assert types.of("f", "days") == {"integer"}
    assert types.of("f", "other") == types.of("f", "") == types.of("g", "days") == ANY


def test_a_long_value_of_a_parameter_is_read_once() -> None:
    value = list(range(20_000))
    text = f"{XML}<parameter=a>\n{json.dumps(value)}\n</parameter></function></tool_call>"
    (call,) = parsed([text[at : at + 7] for at in range(0, len(text), 7)], TOOLS).calls
    assert call.value == {"a": value}
