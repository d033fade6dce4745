"""The text of a call's arguments: what it costs to read it, and how deep it may nest."""

import json
from collections.abc import Callable

import pytest

from tasuki.engine import messages as m
from tasuki.server.anthropic.conversation import ThinkingChoice
from tasuki.server.anthropic.message_writer import MessageHead, MessageWriter
from tasuki.server.responses.output_items import CustomCallItem
from tasuki.server.responses.tools import ToolName
from tasuki.server.text.json_reading import MAX_DEPTH, read_arguments, read_whole_arguments
from tasuki.server.text.parsing.answer_parser import AnswerParser
from tasuki.server.text.text_answer import Ending, Piece, Thinking
from tests.harness.cpu_growth import MOST_RATIO, cpu_ratios
from tests.harness.grpc_fixtures import usage

TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {}}}]
TOO_DEEP = '{"a":' * 2000 + "1" + "}" * 2000
"""Deeper than Python's own reader goes."""


@pytest.mark.parametrize(
    "shape",
    [
        lambda n: '{"a":' + "[" * n,
        lambda n: '{"a":' + "[" * n + "]" * n,
        lambda n: '{"a":[' + "[],[1," * n,
        lambda n: '{"a":[' + '"\\"",' * n,
        lambda n: '{"a":' + '""' * n,
        lambda n: '{"a":"' + "\\" * n,
        lambda n: '{"a":"' + "\\ud800" * n,
    ],
    ids=["brackets", "closed", "lists", "strings", "quotes", "escapes", "halves"],
)
def test_arguments_cut_off_cost_linear_time(shape: Callable[[int], str]) -> None:
    def prepare(size: int) -> Callable[[], object]:
        text = shape(size)
        return lambda: read_arguments(text)

    assert max(cpu_ratios(prepare, 2000)) <= MOST_RATIO


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
