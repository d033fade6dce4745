"""Random tool calls as a model writes them in tags or JSON, and how models damage their tags.

Pure, by a random generator. A damaged call still has one reading (docs/chats.md).
"""

import json
import random
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

WRITE_FILE: Mapping[str, Any] = {
    "type": "object",
    "properties": {
        "path": {"type": "string"},
        "content": {"type": "string"},
        "mode": {"type": "integer"},
    },
    "required": ["path", "content"],
}
"""The JSON schema of a tool, for tool calls written by hand in tests."""
_WORDS = (
    "",
    "a",
    "b c",
    'q"uo',
    "\\n",
    "ü漢😀",
    "<b>",
    "</div>",
    "{",
    "[1]",
    "x\ny",
    "1",
    "null",
    " ",
)
_TAGS = ("<tool_call>", "</parameter> x", "see </function> there", "<parameter=", "</tool_call> so")
_KEYS = ("path", "content", "mode", "flag", "items", "options", "ratio", "note")
_OBJECT = {"type": "object", "properties": {"k": {"type": "string"}}}


def _texts(rng: random.Random) -> str:
    return "".join(rng.choice(_WORDS) for _ in range(rng.randrange(4)))


def _with_tags(rng: random.Random) -> str:
    return f"{_texts(rng)} {rng.choice(_TAGS)} {_texts(rng)}"


Value = Callable[[random.Random], Any]
_KINDS: tuple[tuple[Mapping[str, Any], Value], ...] = (
    ({"type": "string"}, _with_tags),
    ({"type": "string"}, _texts),
    ({"type": "integer"}, lambda rng: rng.randrange(-99, 9999)),
    ({"type": "number"}, lambda rng: rng.randrange(99) / 4),
    ({"type": "boolean"}, lambda rng: rng.random() < 0.5),
    ({"enum": ["read", "write"]}, lambda rng: rng.choice(["read", "write"])),
    ({"const": "fixed"}, lambda rng: "fixed"),
    ({"type": ["string", "null"]}, lambda rng: rng.choice([None, "nullable", "n"])),
    ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, lambda rng: rng.choice([None, 7])),
    ({"type": "array", "items": {"type": "integer"}}, lambda rng: [1, 2, 3][: rng.randrange(4)]),
    (_OBJECT, lambda rng: {"k": _texts(rng)}),
    ({"$ref": "#/$defs/Named"}, lambda rng: rng.choice(["left", "right"])),
)


@dataclass(frozen=True)
class WrittenCall:
    """A tool call written as text. tool: the tool's definition. arguments: the call's arguments.
    text: the call as a model writes it."""

    tool: Mapping[str, Any]
    arguments: Mapping[str, Any]
    text: str


def random_call(rng: random.Random, in_tags: bool) -> WrittenCall:
    keys = rng.sample(_KEYS, rng.randrange(1, 5))
    kinds = {key: rng.choice(_KINDS) for key in keys}
    schema = {
        "type": "object",
        "$defs": {"Named": {"type": "string", "enum": ["left", "right"]}},
        "properties": {key: kind for key, (kind, _) in kinds.items()},
        "required": rng.sample(keys, rng.randrange(len(keys) + 1)),
    }
    arguments = {key: make(rng) for key, (_, make) in kinds.items()}
    tool = {"type": "function", "function": {"name": "act", "parameters": schema}}
    return WrittenCall(tool, arguments, _in_tags(arguments) if in_tags else _in_json(arguments))


def _in_json(arguments: Mapping[str, Any]) -> str:
    body = json.dumps(arguments, ensure_ascii=False)
    return f'<tool_call>\n{{"name": "act", "arguments": {body}}}\n</tool_call>'


def _in_tags(arguments: Mapping[str, Any]) -> str:
    body = "".join(
        f"<parameter={key}>\n{_spelled(value)}\n</parameter>\n" for key, value in arguments.items()
    )
    return f"<tool_call>\n<function=act>\n{body}</function>\n</tool_call>"


def _spelled(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _replaced(pattern: str, by: str) -> Callable[[str], str]:
    return lambda text: re.sub(pattern, by, text, flags=re.MULTILINE)


DAMAGES: Mapping[str, Callable[[str], str]] = {
    "none": lambda text: text,
    "no end of parameters": _replaced(r"^</parameter>\n", ""),
    "no end of the function": _replaced(r"^</function>\n", ""),
    "no end of the call": lambda text: text.removesuffix("\n</tool_call>"),
    "no opening": lambda text: text.removeprefix("<tool_call>\n"),
    "slashes behind": _replaced(r"^</parameter>$", "</parameter/>"),
    "numbers behind": _replaced(r"^</parameter>$", "</parameter1>"),
    "no brackets": _replaced(r"^</parameter>$", "</parameter"),
    "short": _replaced(r"^</parameter>$", "</param>"),
    "upper case": _replaced(r"^</(p)arameter>$", "</Parameter>"),
    "quoted": _replaced(r"^<(parameter|function)=(\w+)>$", r'<\1="\2">'),
    "ends doubled": _replaced(r"^(</(?:tool_call|function|parameter)>)$", r"\1\n\1"),
    "openings doubled": _replaced(r"^(<(?:tool_call|(?:function|parameter)=\w+)>)$", r"\1\n\1"),
}
"""Functions damaging tags alone on their lines, by the damage's name."""
