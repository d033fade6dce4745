"""Tests of JSON from callers and models: its count of values, its depth, and arguments cut
anywhere."""

import json
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasuki.engine import messages as m
from tasuki.server.anthropic.conversation import ThinkingChoice
from tasuki.server.anthropic.message_writer import MessageHead, MessageWriter
from tasuki.server.responses.output_items import CustomCallItem
from tasuki.server.responses.tools import ToolName
from tasuki.server.text import json_reading
from tasuki.server.text.json_reading import (
    MAX_DEPTH,
    MAX_VALUES,
    holds_too_many_values,
    read_arguments,
    read_whole_arguments,
)
from tasuki.server.text.parsing.answer_parser import AnswerParser
from tasuki.server.text.text_answer import Ending, Piece, Thinking
from tests.harness.grpc_fixtures import usage

COMMAS = b"," * (MAX_VALUES + 1)
MOST_MORE = 20
"""Largest ratio to the cost of an equally long text of plain letters."""
LETTERS = st.text('ab,[{"\\', max_size=6)
VALUES = st.recursive(
    st.one_of(st.integers(0, 9), LETTERS),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4), st.dictionaries(LETTERS, inner, max_size=3)
    ),
    max_leaves=12,
)


def seconds(body: bytes) -> float:
    """Return the least processor time of three counts, in seconds."""

    def counted() -> float:
        began = time.process_time()
        holds_too_many_values(body)
        return time.process_time() - began

    return min(counted() for _ in range(3))


@pytest.mark.parametrize("unit", [b'"" ""', b'\\"', b"\\\\", b'","', b'"\\""'])
def test_counting_values_costs_no_more_for_quotes_than_for_letters(unit: bytes) -> None:
    hostile = b'{"a": "' + COMMAS + b'", ' + unit * (1 << 20)
    plain = b'{"a": "' + COMMAS + b'", ' + b"a" * (len(hostile) - len(COMMAS))
    assert seconds(hostile) <= MOST_MORE * seconds(plain)


def separators(text: str) -> int:
    """Count commas and opening brackets outside of strings, letter by letter."""
    count, in_string, escaped = 0, False, False
    for letter in text:
        if in_string:
            in_string = escaped or letter != '"'
            escaped = not escaped and letter == "\\"
        else:
            in_string = letter == '"'
            count += letter in ",[{"
    return count


@given(value=VALUES, length=st.integers(2, 9), least=st.integers(0, 3))
def test_letters_of_strings_are_no_values_wherever_a_slice_ends(
    value: Any, length: int, least: int
) -> None:
    text = json.dumps(value)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_reading, "_SLICE", length)
        patch.setattr(json_reading, "_FEW", length)
        for most in (separators(text) - 1 - least, separators(text), separators(text) + least):
            patch.setattr(json_reading, "MAX_VALUES", most)
            assert holds_too_many_values(text.encode()) == (separators(text) > most)


TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {}}}]
TOO_DEEP = '{"a":' * 2000 + "1" + "}" * 2000
"""JSON nested deeper than Python's own reader accepts."""


def test_arguments_are_closed_up_to_the_deepest_level_allowed() -> None:
    deepest = '{"a":' * MAX_DEPTH
    assert read_arguments(deepest + "1") == json.loads(deepest + "1" + "}" * MAX_DEPTH)
    too_deep = deepest + "["
    assert read_arguments(too_deep) == {"arguments": too_deep}


def test_whole_arguments_are_read_and_others_are_an_empty_object() -> None:
    assert read_whole_arguments('{"a": [1, "x"]}') == {"a": [1, "x"]}
    assert read_whole_arguments('{"a": "\\ud83d"}') == {"a": "\ufffd"}
    for text in ('{"a": [1', "[1]", "null", "", TOO_DEEP):
        assert read_whole_arguments(text) == {}


def test_a_message_with_a_call_too_deep_has_an_empty_input() -> None:
    head = MessageHead("msg_r", "tiny", 5, fills_context=False, with_hit=False)
    parser = AnswerParser(Thinking.NEVER, TOOLS)
    writer = MessageWriter(head, parser, ThinkingChoice())
    text = f'<tool_call>{{"name": "f", "arguments": {TOO_DEEP}}}</tool_call>'
    writer.piece(Piece(text, None))
    writer.ending(Piece("", None), Ending(m.FinishReason.STOP, 1, usage(5, 1)))
    (block,) = writer.whole()["content"]
    assert (block["type"], block["name"], block["input"]) == ("tool_use", "f", {})


def test_a_custom_call_too_deep_is_its_own_input() -> None:
    item = CustomCallItem("ctc_r_0", "call_r", ToolName("f"))
    list(item.grow(TOO_DEEP))
    assert item.whole("completed")["input"] == TOO_DEEP
