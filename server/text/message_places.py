"""Finds where each message begins in a rendered conversation, by a copy of the template that marks
it.

Owns the marks. The copy has one more call at the head of each loop's body, which writes a mark
where the loop's item is a message. One rendering, one MessagePlaces. Invariant: without the marks
the text equals the output of the checkpoint's own template, since only loops whose output goes
straight into the text are marked, never one inside a macro or a block whose text the template may
read or trim.
"""

import re
from collections.abc import Sequence
from typing import Any

from jinja2 import nodes

from .long_text import matches
from .special_token_guard import MARK_BEGIN, MARK_END

ITEM_BEGINS = "_tasuki_item_begins"
LOOP_ENDS = "_tasuki_loop_ends"

_MARK = re.compile(f"{MARK_BEGIN}([me])([0-9]*){MARK_END}")
_LONGEST_MARK = 24


class MessagePlaces:
    """messages: the very objects that the template is given."""

    def __init__(self, messages: Sequence[Any]) -> None:
        self._numbers = {id(message): number for number, message in enumerate(messages)}
        self._count = len(messages)

    def variables(self) -> dict[str, Any]:
        """The functions that the marked template calls, by name."""
        return {ITEM_BEGINS: self._item_begins, LOOP_ENDS: lambda: f"{MARK_BEGIN}e{MARK_END}"}

    def read(self, marked: str) -> tuple[str, dict[int, int]]:
        """The text without marks, and by a count of messages the place where the last of them ends:
        where the next one begins, or where the loop over all of them ends."""
        pieces: list[str] = []
        ends: dict[int, int] = {}
        length = position = 0
        last: int | None = None
        for mark in matches(_MARK, marked, _LONGEST_MARK):
            pieces.append(marked[position : mark.start()])
            length += mark.start() - position
            position = mark.end()
            if mark.group(1) == "m":
                last = int(mark.group(2))
                ends[last] = length
            elif last == self._count - 1:
                ends[self._count] = length
        pieces.append(marked[position:])
        ends.pop(0, None)
        return "".join(pieces), ends

    def _item_begins(self, item: Any) -> str:
        number = self._numbers.get(id(item))
        return "" if number is None else f"{MARK_BEGIN}m{number}{MARK_END}"


def mark_loops(template: nodes.Template) -> nodes.Template:
    """Changes a parsed template in place, and returns it."""
    template.body = _marked(template.body)
    return template


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
                node.body.insert(0, _call(ITEM_BEGINS, [item]))
                found.append(_call(LOOP_ENDS, []))
    return found


def _marked_branch(branch: nodes.If) -> nodes.If:
    branch.body = _marked(branch.body)
    return branch


def _call(name: str, arguments: list[nodes.Expr]) -> nodes.Output:
    return nodes.Output([nodes.Call(nodes.Name(name, "load"), arguments, [], None, None)])
