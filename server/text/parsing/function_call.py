"""Reads a tool call as Qwen3-Coder and Qwen3.5 write it: <function=...><parameter=...>, as the text
comes, into the text of a JSON object.

Owns the text that is not read yet: a few tags, a name and the white space among them. One call, one
thread. Invariants: a closing tag counts only where what follows it is what the format goes on with,
so that a value may hold any of the tags; a value whose type is a string is given out as it is
written, every other once it is whole.
"""

import json
import re
from collections.abc import Callable, Sequence
from enum import Enum
from io import StringIO

from tasuki.server.text.answer_parts import AnswerItem, CallEnd
from tasuki.server.text.json_bounds import JsonDepth
from tasuki.server.text.stop_strings import held_back

from .call_reader import (
    CLOSE,
    FUNCTION_TAG,
    LONGEST_NAME,
    CallState,
    call_arguments,
    call_begin,
)
from .parameter_types import ParameterTypes, json_of

_MOST_SPACE = 256
"""White space between tags. Behind more of it no tag counts."""
_FUNCTION, _END_OF_FUNCTION = FUNCTION_TAG, "</function>"
_PARAMETER, _END_OF_PARAMETER = "<parameter=", "</parameter>"
_NULL = "null"
_NAME = re.compile(rf"[^>\n]{{0,{LONGEST_NAME}}}")
_TAG = re.compile("|".join((_PARAMETER, _END_OF_FUNCTION, CLOSE)))
_END_OF_VALUE = re.compile(f"\n?(?:{_END_OF_PARAMETER}|{_END_OF_FUNCTION})")
_ENDS_OF_VALUE = tuple(
    before + tag for before in ("\n", "") for tag in (_END_OF_PARAMETER, _END_OF_FUNCTION)
)


class _Follows(Enum):
    """Whether what stands at a place is the format's; OPEN: more text decides."""

    YES = "yes"
    NO = "no"
    OPEN = "open"


class FunctionCall:
    """As a CallReader. REQUIRES: FUNCTION_TAG begins the text."""

    def __init__(self, number: int, types: ParameterTypes) -> None:
        """types: those of the request's tools."""
        self.state = CallState.READING
        self.left = ""
        self.decided = 0
        self._number = number
        self._types = types
        self._held = ""
        self._finishing = False
        self._function = ""
        self._seen: set[str] = set()
        self._value = _Value(frozenset())
        self._step: Callable[[list[AnswerItem]], bool] = self._open

    def push(self, text: str) -> list[AnswerItem]:
        self._held += text
        items: list[AnswerItem] = []
        while self.state is CallState.READING and self._step(items):
            pass
        return items

    def finish(self) -> list[AnswerItem]:
        self._finishing = True
        items = self.push("")
        if self.state is CallState.READING:
            if self._step == self._open:
                self._refuse(len(self._held))
            elif self._step == self._pass_value:
                items += self._given(self._value.push(self._held))
        return items

    def _open(self, items: list[AnswerItem]) -> bool:
        follows, end = _name_end(self._held, len(_FUNCTION))
        if follows is _Follows.NO:
            self._refuse(end)
        if follows is not _Follows.YES:
            return False
        self._function = self._held[len(_FUNCTION) : end].strip()
        items.append(call_begin(self._number, self._function))
        items += self._given("{")
        self._held = self._held[end + 1 :]
        self._step = self._between
        return True

    def _between(self, items: list[AnswerItem]) -> bool:
        """Outside of parameters, where nothing but tags counts."""
        found = _TAG.search(self._held)
        if found is None:
            length = held_back(self._held, (_PARAMETER, _END_OF_FUNCTION, CLOSE))
            self._held = self._held[len(self._held) - length :]
            return False
        tag = found.group()
        if tag != _PARAMETER:
            return self._end(
                self._held[found.end() if tag == _END_OF_FUNCTION else found.start() :], items
            )
        self._held = self._held[found.start() :]
        follows, end = _name_end(self._held, len(_PARAMETER))
        if follows is _Follows.NO:
            self._held = self._held[len(_PARAMETER) :]
            return True
        if follows is _Follows.OPEN or (end + 1 == len(self._held) and not self._finishing):
            # A line break that may follow is no part of the value.
            return False
        key = self._held[len(_PARAMETER) : end].strip()
        before = ", " if self._seen else ""
        items += self._given(f"{before}{json.dumps(key, ensure_ascii=False)}: ")
        self._seen.add(key)
        self._value = _Value(self._types.of(self._function, key))
        self._held = self._held[end + 1 :].removeprefix("\n")
        self._step = self._pass_value
        return True

    def _pass_value(self, items: list[AnswerItem]) -> bool:
        found = _END_OF_VALUE.search(self._held)
        if found is None:
            certain = len(self._held) - held_back(self._held, _ENDS_OF_VALUE)
            items += self._given(self._value.push(self._held[:certain]))
            self._held = self._held[certain:]
            return False
        follows = self._ends_value(found)
        if follows is _Follows.NO:
            items += self._given(self._value.push(self._held[: found.end()]))
            self._held = self._held[found.end() :]
            return True
        items += self._given(self._value.push(self._held[: found.start()]))
        self._held = self._held[found.start() :]
        if follows is _Follows.OPEN:
            return False
        items += self._given(self._value.end())
        # Behind it the end of a function counts, of a parameter no more.
        self._held = self._held.lstrip("\n").removeprefix(_END_OF_PARAMETER)
        self._step = self._between
        return True

    def _ends_value(self, found: "re.Match[str]") -> _Follows:
        """Whether the format goes on behind a closing tag that was found in a value."""
        if found.group().endswith(_END_OF_FUNCTION):
            return self._follows(found.end(), (CLOSE,))[0]
        follows, at = self._follows(found.end(), (_PARAMETER, _END_OF_FUNCTION, CLOSE))
        if follows is not _Follows.YES:
            return follows
        if self._held.startswith(_END_OF_FUNCTION, at):
            return self._follows(at + len(_END_OF_FUNCTION), (CLOSE,))[0]
        if self._held.startswith(_PARAMETER, at):
            return self._new_parameter(at + len(_PARAMETER))
        return _Follows.YES

    def _new_parameter(self, at: int) -> _Follows:
        follows, end = _name_end(self._held, at)
        if follows is _Follows.OPEN:
            return self._undecided
        if follows is _Follows.YES and self._held[at:end].strip() in self._seen:
            return _Follows.NO
        return follows

    def _follows(self, at: int, tags: Sequence[str]) -> tuple[_Follows, int]:
        """Return whether one of the tags stands there behind white space, and where."""
        space = self._held[at : at + _MOST_SPACE + 1]
        place = at + len(space) - len(space.lstrip())
        if place - at > _MOST_SPACE:
            return _Follows.NO, place
        rest = self._held[place : place + max(map(len, tags))]
        if rest.startswith(tuple(tags)):
            return _Follows.YES, place
        if any(tag.startswith(rest) for tag in tags):
            return self._undecided, len(self._held)
        return _Follows.NO, place

    @property
    def _undecided(self) -> _Follows:
        """Where the answer ends in the middle of tags, they were to be tags."""
        return _Follows.YES if self._finishing else _Follows.OPEN

    def _given(self, text: str) -> list[AnswerItem]:
        return call_arguments(self._number, text)

    def _end(self, left: str, items: list[AnswerItem]) -> bool:
        items += [*self._given("}"), CallEnd(self._number)]
        self.left = left
        self.state = CallState.ENDED
        return False

    def _refuse(self, decided: int) -> None:
        self.left = self._held
        self.decided = decided
        self.state = CallState.NO_CALL


class _Value:
    """A parameter's value as JSON text, as it comes. types: that its schema allows."""

    def __init__(self, types: frozenset[str]) -> None:
        self._types = types
        self._collected = StringIO()
        self._depth = JsonDepth()
        # Its first letters, without the white space before them, while they may be null's.
        self._first = ""
        self._streaming = False

    def push(self, text: str) -> str:
        if self._streaming:
            return _letters(text)
        self._collected.write(text)
        if self._types != {"string"}:
            self._depth.add(text)
        if not text or not self._is_string(text):
            return ""
        self._streaming = True
        whole, self._collected = self._collected.getvalue(), StringIO()
        return '"' + _letters(whole)

    def end(self) -> str:
        if self._streaming:
            return '"'
        return json_of(self._collected.getvalue(), self._types, self._depth)

    def _is_string(self, text: str) -> bool:
        """Return whether the value is a string, by its letters up to those of `text`."""
        if "string" not in self._types or self._types - {"string", "null"}:
            return False
        if self._types == {"string"}:
            return True
        first = (self._first + text).lstrip()
        word = first.rstrip()
        # One space stands for all that may end the value.
        self._first = f"{word} " if word and len(word) < len(first) else word
        return not _NULL.startswith(word.lower())


def _letters(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)[1:-1]


def _name_end(text: str, at: int) -> tuple[_Follows, int]:
    """Return whether a name and its bracket stand there, and the place of the bracket or of the
    letter that no name has."""
    found = _NAME.match(text, at)
    assert found is not None
    end = found.end()
    if end == len(text):
        return _Follows.OPEN, end
    return _Follows.YES if text[end] == ">" and end > at else _Follows.NO, end
