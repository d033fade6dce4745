"""Tool calls as models write them, whole and damaged, and what they are (docs/chats.md)."""

import json
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from tasuki.cli.conformance.question import Question, Tool

SAY = "say: "
"""Stands in a prompt before the JSON string that is to be the answer."""
BOUND = 2000

WRITE_FILE = Tool(
    "write_file",
    {
        "type": "object",
        "properties": {
            "path": {"type": "string"},
            "content": {"type": "string"},
            "mode": {"type": "integer"},
        },
        "required": ["path", "content"],
    },
)
LIST = Tool("list", {"type": "object"})
PATH = "<parameter=path>\na.txt\n</parameter>\n"
CONTENT = "<parameter=content>\nhi\n</parameter>\n"
OPEN_CONTENT = "<parameter=content>\nhi"
WHOLE: Mapping[str, Any] = {"path": "a.txt", "content": "hi"}
_OPEN_PATH = "<parameter=path>\na.txt\n"


def begun(body: str, name: str = "write_file") -> str:
    """A call without its end."""
    return f"<tool_call>\n<function={name}>\n{body}"


def block(body: str, name: str = "write_file") -> str:
    return f"{begun(body, name)}</function>\n</tool_call>"


def in_json(arguments: str) -> str:
    return f'<tool_call>\n{{"name": "write_file", "arguments": {arguments}}}\n</tool_call>'


def saying(
    text: str,
    bound: int = BOUND,
    stop: Sequence[str] = (),
    fields: Mapping[str, Any] = MappingProxyType({}),
) -> Question:
    """Asks for that text. fields: more of the request. Each prompt differs from all others before
    its text: no cache knows it."""
    return Question(
        f"{secrets.token_hex(4)} {SAY}{json.dumps(text)}",
        bound=bound,
        tools=(WRITE_FILE, LIST),
        stop=tuple(stop),
        fields=tuple(fields.items()),
    )


@dataclass(frozen=True)
class Damage:
    """texts: of answers that all are these calls of write_file, and nothing else."""

    name: str
    texts: tuple[str, ...]
    calls: tuple[Mapping[str, Any], ...] = (WHOLE,)


_GOOD = block(PATH + CONTENT)
_TAGS = ("</parameter/>", "</parameter1>", "</parameter", "</param>", "</Parameter>")
DAMAGES = (
    Damage("a whole call between tags", (_GOOD,)),
    Damage("a whole call in JSON", (in_json(json.dumps(WHOLE)),)),
    Damage("two whole calls", (f"{_GOOD}\n{_GOOD}",), (WHOLE, WHOLE)),
    Damage(
        "damaged closing tags",
        (
            *(block(f"{_OPEN_PATH}{tag}\n<parameter=content>\nhi\n{tag}\n") for tag in _TAGS),
            _GOOD.replace("</function>", "</Function>"),
            _GOOD.replace("</function>", "</function"),
            _GOOD.replace("</tool_call>", "</tool_call/>"),
        ),
    ),
    Damage(
        "values without their closing tags",
        (
            block(_OPEN_PATH + CONTENT),
            block(PATH + "<parameter=content>\nhi\n"),
            block(_OPEN_PATH + "<parameter=content>\nhi\n"),
            _GOOD.replace("</parameter>\n", "").replace("</function>\n", ""),
        ),
    ),
    Damage(
        "closing tags twice",
        (
            _GOOD.replace("</parameter>", "</parameter>\n</parameter>"),
            _GOOD.replace("</function>", "</function>\n</function>"),
            _GOOD + "\n</tool_call>",
        ),
    ),
    Damage(
        "opening tags twice",
        (
            "<tool_call>\n" + _GOOD,
            block("<parameter=path>\n" + PATH + CONTENT),
            block("<function=write_file>\n" + PATH + CONTENT),
            block(PATH + CONTENT + PATH.replace("a.txt", "other")),
        ),
    ),
    Damage(
        "quoted names",
        (
            block(PATH + CONTENT, '"write_file"'),
            block(PATH.replace("=path", '="path"') + CONTENT.replace("=content", "='content'")),
        ),
    ),
    Damage(
        "no opening tag of the call",
        (
            _GOOD.removeprefix("<tool_call>\n"),
            _GOOD.removeprefix("<tool_call>\n").removesuffix("\n</tool_call>"),
        ),
    ),
    Damage(
        "two calls in one block",
        tuple(
            begun(PATH + OPEN_CONTENT) + "\n" + between + _GOOD.removeprefix("<tool_call>\n")
            for between in (
                "</function>\n",
                "</parameter>\n</function>\n",
                "</parameter>\n</function>\n<tool_call>\n",
                "</function>\n</tool_call>\n",
            )
        ),
        (WHOLE, WHOLE),
    ),
    Damage(
        "JSON that has to be repaired",
        (
            in_json('{"path": "a.txt", "content": "hi",}'),
            in_json('{"path": "a.txt", "content": "hi"'),
        ),
    ),
)
HELD_TAGS = (
    "a </parameter> b",
    "x\n</parameter>\n</div>",
    "<tool_call>\n<function=f>\nso",
    "x\n<parameter=other>\ny",
    "</tool_call>",
)
"""Values of a call that hold tags, and stay as they are."""
