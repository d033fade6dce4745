"""Tests of tool calls with missing, damaged or doubled tags, and of answers with a call at the
end."""

from functools import partial
from typing import Any

import pytest

from tests.harness import answer_pieces
from tests.harness.answer_pieces import BY_ITSELF, BY_LENGTH, Parsed
from tests.harness.written_calls import WRITE_FILE

TOOLS = [
    {"type": "function", "function": {"name": "write_file", "parameters": WRITE_FILE}},
    {"type": "function", "function": {"name": "list", "parameters": {"type": "object"}}},
]
PATH = "<parameter=path>\na.txt\n</parameter>\n"
CONTENT = "<parameter=content>\nhi\n</parameter>\n"
WHOLE = {"path": "a.txt", "content": "hi"}
every_cut = partial(answer_pieces.every_cut, tools=TOOLS)


def block(body: str, name: str = "write_file") -> str:
    return f"<tool_call>\n<function={name}>\n{body}</function>\n</tool_call>"


def values(found: Parsed) -> list[Any]:
    return [call.value for call in found.calls]


@pytest.mark.parametrize(
    "text",
    [
        block("<parameter=path>\na.txt\n" + CONTENT),
        block(PATH + "<parameter=content>\nhi\n"),
        block(PATH + "<parameter=content>\nhi"),
        block("<parameter=path>\na.txt\n<parameter=content>\nhi\n"),
        *(
            block(f"<parameter=path>\na.txt\n{tag}\n<parameter=content>\nhi\n{tag}\n")
            for tag in ("</parameter/>", "</parameter1>", "</parameter", "</param>", "</Parameter>")
        ),
        block(PATH + CONTENT).replace("</function>", "</Function>"),
        block(PATH + CONTENT).replace("</function>", "</function"),
        block(PATH + CONTENT).replace("</tool_call>", "</tool_call/>"),
        block(PATH + CONTENT).replace("</parameter>", "</parameter>\n</parameter>"),
        block(PATH + CONTENT).replace("</function>", "</function>\n</function>"),
        block(PATH + CONTENT) + "\n</tool_call>",
        "<tool_call>\n" + block(PATH + CONTENT),
        block("<parameter=path>\n" + PATH + CONTENT),
        block("<function=write_file>\n" + PATH + CONTENT),
        block(PATH + CONTENT + PATH.replace("a.txt", "other")),
        block(PATH + CONTENT, '"write_file"'),
        block(PATH.replace("=path", '="path"') + CONTENT.replace("=content", "='content'")),
        block(PATH + CONTENT).removeprefix("<tool_call>\n"),
        block(PATH + CONTENT).removeprefix("<tool_call>\n").removesuffix("\n</tool_call>"),
        block(PATH + CONTENT).replace("</function>\n", ""),
        block(PATH + CONTENT).replace("</parameter>\n", "").replace("</function>\n", ""),
    ],
)
def test_a_damaged_call_has_each_value_in_its_parameter(text: str) -> None:
    for ending in (BY_ITSELF, BY_LENGTH):
        found = every_cut(text, ending=ending)
        assert values(found) == [WHOLE] and not found.content, found


@pytest.mark.parametrize(
    "between",
    [
        "</function>\n",
        "</parameter>\n</function>\n",
        "</function>\n<tool_call>\n",
        "</parameter>\n</function>\n<tool_call>\n",
        "</function>\n</tool_call>\n",
        "</tool_call>\n<tool_call>\n",
        "<tool_call>\n",
    ],
)
def test_two_calls_in_one_block_are_two(between: str) -> None:
    first = f"<tool_call>\n<function=write_file>\n{PATH}<parameter=content>\nhi\n"
    if between == "<tool_call>\n":
        first += "</parameter>\n"
    text = first + between + block(PATH + CONTENT).removeprefix("<tool_call>\n")
    assert values(every_cut(text)) == [WHOLE, WHOLE]


@pytest.mark.parametrize(
    "value",
    [
        "a </parameter> b",
        "x\n</parameter>\n</div>",
        "<tool_call>\n<function=f>\nso",
        "<parameter=mode> is an integer",
        "x\n<parameter=other>\ny",
        "</tool_call>",
        "x\n</tool_call>\ny",
        "if a </param b",
        "<function=write_file>",
        "\n\n",
        "<",
    ],
)
def test_a_value_may_hold_tags(value: str) -> None:
    text = block(PATH + f"<parameter=content>\n{value}\n</parameter>\n")
    assert values(every_cut(text)) == [{"path": "a.txt", "content": value}]


def test_an_integer_is_one_though_its_closing_tag_is_missing() -> None:
    text = block("<parameter=mode>\n3\n" + PATH + CONTENT)
    assert values(every_cut(text)) == [{"mode": 3, **WHOLE}]
