"""Finds where messages end in a rendered conversation, by a copy of the template that marks it.

Pure. The copy writes a mark at the head of each loop's body whose item is a mapping, one behind
each such loop, and one before the opening of an answer. Invariant: without the marks the text
equals the output of the checkpoint's own template, since only loops whose output goes straight into
the text are marked, never one inside a macro or a block whose text the template may read or trim.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jinja2 import nodes

from tasuki.server.text.long_text import matches

from .special_token_guard import MARK_BEGIN, MARK_END

ITEM_MARK = "_tasuki_item_mark"
"""The filter that makes an item's mark."""

_LOOP_END = f"{MARK_BEGIN}e{MARK_END}"
_OPENING = f"{MARK_BEGIN}o{MARK_END}"
MARK = re.compile(f"{MARK_BEGIN}([meo])([0-9]*){MARK_END}")
LONGEST_MARK = 24
_FLAG = "add_generation_prompt"


@dataclass(frozen=True)
class MessagePlaces:
    """In a text without its marks. ends: by a count of messages the place where the last of them
    ends: where the next one begins, or where the loop over all of them ends. closed: how much of
    the text the template writes without the opening of an answer; None where only rendering can
    show it."""

    ends: Mapping[int, int]
    closed: int | None


def item_mark(item: Any) -> str:
    """Of a mapping, which may be a message; nothing of other items."""
    return f"{MARK_BEGIN}m{id(item)}{MARK_END}" if isinstance(item, dict) else ""


def message_places(marked: str, messages: Sequence[Any]) -> MessagePlaces:
    """Reads the marks of a text. messages: the very objects that the template was given, so that
    no other living object has their ids."""
    numbers = {id(message): number for number, message in enumerate(messages)}
    ends: dict[int, int] = {}
    closed: int | None = None
    marks_before = 0
    last: int | None = None
    for mark in matches(MARK, marked, LONGEST_MARK):
        begin, end = mark.span()
        place = begin - marks_before
        marks_before += end - begin
        kind, item = mark.groups()
        if kind == "o":
            closed = place
        elif kind == "e":
            if last == len(messages) - 1:
                ends[len(messages)] = place
        elif (number := numbers.get(int(item))) is not None:
            last = number
            ends[last] = place
    ends.pop(0, None)
    return MessagePlaces(ends, closed)


def mark_template(template: nodes.Template) -> nodes.Template:
    """Changes a parsed template in place, and returns it."""
    opens_last = _opens_last(template)
    template.body = _marked(template.body)
    if opens_last:
        template.body.insert(len(template.body) - 1, _constant(_OPENING))
    return template


def _opens_last(template: nodes.Template) -> bool:
    """Whether the flag that asks for an answer's opening is good for the template's last branch
    alone. All before that branch is then what the template writes without the flag."""
    last = template.body[-1] if template.body else None
    if not isinstance(last, nodes.If) or last.else_ or last.elif_:
        return False
    read = [name for name in template.find_all(nodes.Name) if name.name == _FLAG]
    return len(read) == 1 and read[0] is last.test


def _marked(body: list[nodes.Node]) -> list[nodes.Node]:
    found: list[nodes.Node] = []
    for node in body:
        found.append(node)
        if isinstance(node, nodes.If):
            node.body, node.else_ = _marked(node.body), _marked(node.else_)
            node.elif_ = [_marked_branch(branch) for branch in node.elif_]
        elif isinstance(node, nodes.For) and not node.recursive:
            node.body = _marked(node.body)
            if isinstance(node.target, nodes.Name):
                item = nodes.Name(node.target.name, "load")
                mark = nodes.Filter(item, ITEM_MARK, [], [], None, None)
                node.body.insert(0, nodes.Output([mark]))
                found.append(_constant(_LOOP_END))
    return found


def _marked_branch(branch: nodes.If) -> nodes.If:
    branch.body = _marked(branch.body)
    return branch


def _constant(text: str) -> nodes.Output:
    return nodes.Output([nodes.TemplateData(text)])
