"""Tests of structural tags: the text each format allows, and refusals by place."""

import json
from typing import Any

import pytest

from tasuki.server.errors import InvalidField
from tasuki.server.text.grammars.structural_tag import of_structural_tag
from tests.harness.byte_grammars import follows

DAYS = {
    "type": "object",
    "properties": {"days": {"enum": [1, 2]}},
    "required": ["days"],
    "additionalProperties": False,
}
JSON = {"type": "json_schema", "json_schema": DAYS}
CALL = {"type": "tag", "begin": "<call>", "content": JSON, "end": "</call>"}
NOTE = {"type": "tag", "begin": "<cat>", "content": {"type": "any_text"}, "end": ["</n>", "."]}
TRIGGERED = {"type": "triggered_tags", "triggers": ["<ca"], "tags": [CALL, NOTE]}
RIGHT, WRONG = '<call>{"days": 1}</call>', '<call>{"days": 3}</call>'
# A format, texts it allows, and texts it rejects.
FORMATS: dict[str, tuple[dict[str, Any], list[str], list[str]]] = {
    "const_string": ({"type": "const_string", "value": 'a"\n'}, ['a"\n'], ["a", ""]),
    "json_schema": (JSON, ['{"days": 2}'], ['{"days": 3}', ""]),
    "regex": ({"type": "regex", "pattern": "[a-c]/d"}, ["b/d"], ["d/d"]),
    "any_text": ({"type": "any_text"}, ["", "a\nb {"], []),
    "sequence": (
        {"type": "sequence", "elements": [{"type": "regex", "pattern": "a+"}, CALL]},
        [f"aa{RIGHT}"],
        [RIGHT, f"a{WRONG}"],
    ),
    "or": ({"type": "or", "elements": [CALL, {"type": "any_text"}]}, [RIGHT, "fine"], []),
    "tag": (CALL, [RIGHT], [WRONG, f" {RIGHT}", f"{RIGHT} "]),
    "triggered_tags": (
        TRIGGERED,
        ["", "fine <c", f"So: {RIGHT}", f"{RIGHT} and {RIGHT}", "<cat>any\nthing.", "a<cat></n>b"],
        [WRONG, f"a {RIGHT} b {WRONG}", "<car>", "<cat>never"],
    ),
    "triggered_tags, one at least": (
        {**TRIGGERED, "at_least_one": True},
        [RIGHT, f"a {RIGHT} b"],
        ["", "fine"],
    ),
    "triggered_tags, the first alone": (
        {**TRIGGERED, "stop_after_first": True},
        ["fine", f"a {RIGHT}"],
        [f"{RIGHT} b", f"{RIGHT}{RIGHT}"],
    ),
    "tags_with_separator": (
        {"type": "tags_with_separator", "tags": [CALL], "separator": ", "},
        ["", RIGHT, f"{RIGHT}, {RIGHT}"],
        [f"{RIGHT}{RIGHT}", WRONG, "fine"],
    ),
    "tags_with_separator, one": (
        {
            "type": "tags_with_separator",
            "tags": [CALL],
            "separator": "",
            "at_least_one": True,
            "stop_after_first": True,
        },
        [RIGHT],
        ["", f"{RIGHT}{RIGHT}"],
    ),
}


@pytest.mark.parametrize("name", FORMATS)
def test_a_format_lets_through_what_it_says_and_nothing_else(name: str) -> None:
    form, right, wrong = FORMATS[name]
    tag = json.dumps({"type": "structural_tag", "format": form})
    for texts, expected in ((right, True), (wrong, False)):
        for text in texts:
            assert follows(of_structural_tag("structural_tag", tag), text) is expected, text


def test_the_older_shape_is_the_same() -> None:
    structure = {"begin": "<call>", "schema": DAYS, "end": "</call>"}
    tag = {"type": "structural_tag", "structures": [structure], "triggers": ["<call"]}
    for text in ("", f"So: {RIGHT}", f"{RIGHT} and {RIGHT}"):
        assert follows(of_structural_tag("structural_tag", tag), text), text
    assert not follows(of_structural_tag("structural_tag", tag), f"So: {WRONG}")
    assert not follows(of_structural_tag("structural_tag", {**tag, "at_least_one": True}), "fine")


@pytest.mark.parametrize(
    ("tag", "place"),
    [
        ("{", "structural_tag is not JSON"),
        ([], "structural_tag must be an object"),
        ({"type": "other", "format": JSON}, "structural_tag must be"),
        ({}, "structural_tag must have a format"),
        ({"format": JSON, "more": 1}, "structural_tag.more"),
        ({"format": None}, "structural_tag.format must be"),
        ({"format": {"type": "grammar", "grammar": "a"}}, "structural_tag.format.type"),
        ({"format": {**JSON, "style": "qwen_xml"}}, "structural_tag.format.style"),
        ({"format": {**JSON, "json_schema": 5}}, "structural_tag.format.json_schema"),
        ({"format": {"type": "any_text", "excludes": ["a"]}}, "structural_tag.format.excludes"),
        ({"format": {**TRIGGERED, "triggers": ["<x"]}}, "structural_tag.format.tags[0].begin"),
        ({"format": {**TRIGGERED, "triggers": []}}, "structural_tag.format.triggers"),
        ({"format": {**TRIGGERED, "at_least_one": 1}}, "structural_tag.format.at_least_one"),
        ({"format": {**CALL, "end": None}}, "structural_tag.format.end"),
        (
            {"format": {"type": "sequence", "elements": [{"type": "any_text"}, JSON]}},
            "structural_tag.format.elements[0]",
        ),
        ({"structures": [{"begin": 5, "end": ""}], "triggers": ["a"]}, "structural_tag.tags[0]"),
    ],
    ids=str,
)
def test_what_is_not_served_is_named(tag: Any, place: str) -> None:
    with pytest.raises(InvalidField) as refused:
        of_structural_tag("structural_tag", tag)
    assert str(refused.value).startswith(place), refused.value
