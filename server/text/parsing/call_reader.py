"""The common interface of readers for the formats of a tool call, and the tags of a call.

Tags: functions to find the tags of a tool call in text, whole or damaged. Pure functions; any
thread. A closing tag may have any case, characters after its kind, a slash, and no bracket:
`</Parameter>`, `</param>`, `</parameter1>`, `</parameter/>`, `</parameter`. An opening tag is
exact, except for quotes around its name.
"""

import re
from collections.abc import Callable
from enum import Enum
from typing import NamedTuple, Protocol
from uuid import uuid4

from tasuki.server.text.text_answer import AnswerItem, CallArguments, CallBegin

OPEN, CLOSE = "<tool_call>", "</tool_call>"
FUNCTION_TAG = "<function="
"""First characters of a call with its arguments between tags. A call in JSON begins with a
brace."""
LONGEST_NAME = 256
"""Largest number of characters of a function's name, a parameter's name or a key. Text with a
longer name is no call."""


class CallState(Enum):
    """The state of a call reader. READING: the call has not ended. ENDED: the call has ended.
    NO_CALL: the text is no call in this format, and no part of it was returned."""

    READING = "reading"
    ENDED = "ended"
    NO_CALL = "no call"


class CallReader(Protocol):
    """A reader of one tool call. It gets the text after the call's opening tag and white space, in
    segments.

    left: if ENDED, the text after the call, closing tag included; if NO_CALL, all of the text.
    decided: if NO_CALL, the number of characters of `left` before the deciding one. Invariant: the
    work for a segment does not grow with the text before it.
    """

    state: CallState
    left: str
    decided: int

    def letters(self, text: str) -> CallArguments | None:
        """Return a segment as arguments if it has only characters of an open string. Return None if
        it may have more; push() then has to read it. The result equals push()'s at less cost,
        because most tokens of a call are such text."""
        ...

    def push(self, text: str) -> list[AnswerItem]:
        """Add the next segment of the call. Return the parts certain now. REQUIRES: the state is
        READING."""
        ...

    def finish(self, was_cut: bool) -> list[AnswerItem]:
        """Close the call because the answer has ended inside it. Return the parts held back. A call
        without a begin is NO_CALL. was_cut: the token limit or a stop string ended the answer, so
        the call's last text may be incomplete."""
        ...


Step = Callable[[list[AnswerItem]], bool]
"""One step of a call reader: read from one position of the format, and add the parts certain now to
the list. Return True if the next step may read."""


def call_begin(number: int, name: str) -> CallBegin:
    return CallBegin(number, f"call_{uuid4().hex}", name)


def call_arguments(number: int, text: str) -> list[AnswerItem]:
    return [CallArguments(number, text)] if text else []


PARAMETER_TAG = "<parameter="
_MOST_SPACE = 256
"""Largest number of white space characters between tags. A tag after more of them does not
count."""
_CLOSING = re.compile(
    r"</(?i:(?P<parameter>param\w{0,16})|(?P<function>func\w{0,16})|(?P<call>tool_?call\w{0,8}))/?>?"
)
_BEGINNINGS = (PARAMETER_TAG, FUNCTION_TAG, OPEN, "</param", "</func", CLOSE, "</toolcall")
_LONGEST_BEGINNING = max(map(len, _BEGINNINGS))
_NAME = re.compile(rf"[^>\n]{{0,{LONGEST_NAME}}}")
_TAG = re.compile(rf"{PARAMETER_TAG}|{FUNCTION_TAG}|{OPEN}|</(?i:param|func|tool_?call)")
_END_OF_VALUE = re.compile(rf"\n?</(?i:param|func)|\n(?:</(?i:tool_?call)|{PARAMETER_TAG})")


class Tag(Enum):
    PARAMETER = "parameter"
    FUNCTION = "function"
    CALL = "call"
    END_OF_PARAMETER = "end of parameter"
    END_OF_FUNCTION = "end of function"
    END_OF_CALL = "end of call"


_OPENING = {PARAMETER_TAG: Tag.PARAMETER, FUNCTION_TAG: Tag.FUNCTION, OPEN: Tag.CALL}
_CLOSED = {
    "parameter": Tag.END_OF_PARAMETER,
    "function": Tag.END_OF_FUNCTION,
    "call": Tag.END_OF_CALL,
}


class Follows(Enum):
    """The answer to a question about the text at an index, such as: is there a tag? OPEN: more text
    is needed to decide."""

    YES = "yes"
    NO = "no"
    OPEN = "open"


class Found(NamedTuple):
    """The tag found at an index of a text. tag: None without a tag, or if more text is needed to
    decide. end: index after the tag; for PARAMETER and FUNCTION, the index of the name in the
    tag."""

    follows: Follows
    tag: Tag | None
    end: int


def tag_at(text: str, at: int) -> Found:
    """Return the tag at index `at` of the text."""
    for opening, tag in _OPENING.items():
        if text.startswith(opening, at):
            return Found(Follows.YES, tag, at + len(opening))
    found = _CLOSING.match(text, at)
    if found is not None:
        if found.end() == len(text) and not found.group().endswith(">"):
            return Found(Follows.OPEN, None, found.end())
        assert found.lastgroup is not None
        return Found(Follows.YES, _CLOSED[found.lastgroup], found.end())
    rest = text[at : at + _LONGEST_BEGINNING].lower()
    if any(beginning.startswith(rest) for beginning in _BEGINNINGS):
        return Found(Follows.OPEN, None, len(text))
    return Found(Follows.NO, None, at)


def next_tag(text: str) -> int | None:
    """Return the index of the first tag in the text; None without one."""
    found = _TAG.search(text)
    return None if found is None else found.start()


def next_end_of_value(text: str) -> tuple[int, int] | None:
    """Return two indices for the first tag ending a parameter's value. The first is the index of
    the line break before the tag, or of the tag without one. The second is the index of the tag.
    Return None without such a tag."""
    found = _END_OF_VALUE.search(text)
    return None if found is None else (found.start(), text.index("<", found.start()))


def torn_tag(text: str) -> int:
    """Return the number of characters at the text's end possibly beginning a tag, or a line break
    before a tag."""
    at = text.rfind("<", max(len(text) - _LONGEST_BEGINNING, 0))
    if at < 0:
        at = len(text)
    else:
        rest = text[at:].lower()
        if not any(beginning.startswith(rest) for beginning in _BEGINNINGS):
            at = len(text)
    if at and text[at - 1] == "\n":
        at -= 1
    return len(text) - at


def space_end(text: str, at: int) -> int | None:
    """Return the index of the first character after white space from index `at` on. Return None if
    there is too much white space."""
    space = text[at : at + _MOST_SPACE + 1]
    place = at + len(space) - len(space.lstrip())
    return None if place - at > _MOST_SPACE else place


def name_end(text: str, at: int) -> tuple[Follows, int]:
    """Return YES if a name and its closing bracket follow at index `at`, NO if not, OPEN if more
    text decides. Also return the index of the bracket, or of the first character not in the
    name."""
    found = _NAME.match(text, at)
    assert found is not None
    end = found.end()
    if end == len(text) and end - at <= LONGEST_NAME:
        return Follows.OPEN, end
    return Follows.YES if text[end : end + 1] == ">" and end > at else Follows.NO, end


def plain_name(text: str) -> str:
    """Return the name without white space and quotes around it."""
    name = text.strip()
    if len(name) > 2 and name[0] in "\"'" and name[-1] == name[0]:
        return name[1:-1].strip()
    return name
