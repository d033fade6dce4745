"""Reads a tool call as Qwen3-Coder and Qwen3.5 write it: <function=...><parameter=...>, as the text
comes, into the text of a JSON object.

Owns the text that is not read yet. One call, one thread. Invariants: a closing tag counts only
where what follows it is what the format goes on with, so that a value may hold any of the tags; a
value whose type is a string is given out as it is written, every other once it is whole.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import Any

from tasuki.server.text.answer_parts import AnswerItem, CallEnd
from tasuki.server.text.stop_strings import held_back

from .call_reader import CLOSE, FUNCTION_TAG, CallState, call_arguments, call_begin
from .parameter_types import json_of, json_types, parameter_schemas

_LONGEST_NAME = 256
_FUNCTION, _END_OF_FUNCTION = FUNCTION_TAG, "</function>"
_PARAMETER, _END_OF_PARAMETER = "<parameter=", "</parameter>"
_NAME = re.compile(rf"([^>\n]{{1,{_LONGEST_NAME}}})>")
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
    """As a CallReader."""

    def __init__(self, number: int, tools: Sequence[Mapping[str, Any]]) -> None:
        """tools: the request's definitions, which have the types of parameters."""
        self.state = CallState.READING
        self.left = ""
        self._number = number
        self._tools = tools
        self._held = ""
        self._finishing = False
        self._schemas: Mapping[str, Any] = {}
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
                self._refuse()
            elif self._step == self._pass_value:
                items += self._given(self._value.push(self._held))
        return items

    def _open(self, items: list[AnswerItem]) -> bool:
        text = self._held.lstrip()
        name = _NAME.match(text, len(_FUNCTION))
        if name is not None:
            self._schemas = parameter_schemas(name[1].strip(), self._tools)
            items.append(call_begin(self._number, name[1].strip()))
            items += self._given("{")
            self._held = text[name.end() :]
            self._step = self._between
            return True
        if _no_name(text[len(_FUNCTION) :]):
            self._refuse()
        return False

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
        name = _NAME.match(self._held, found.end())
        if name is None:
            self._held = self._held[found.start() :]
            if not _no_name(self._held[len(_PARAMETER) :]):
                return False
            self._held = self._held[len(_PARAMETER) :]
            return True
        if name.end() == len(self._held) and not self._finishing:
            # A line break that may follow is no part of the value.
            return False
        key = name[1].strip()
        before = ", " if self._seen else ""
        items += self._given(f"{before}{json.dumps(key, ensure_ascii=False)}: ")
        self._seen.add(key)
        self._value = _Value(json_types(self._schemas.get(key), self._schemas))
        self._held = self._held[name.end() :].removeprefix("\n")
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
        name = _NAME.match(self._held, at)
        if name is not None:
            return _Follows.NO if name[1].strip() in self._seen else _Follows.YES
        if _no_name(self._held[at:]):
            return _Follows.NO
        return self._undecided

    def _follows(self, at: int, tags: Sequence[str]) -> tuple[_Follows, int]:
        """Whether one of the tags stands there behind white space, and where."""
        rest = self._held[at:].lstrip()
        place = len(self._held) - len(rest)
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

    def _refuse(self) -> None:
        self.left = self._held
        self.state = CallState.NO_CALL


class _Value:
    """A parameter's value as JSON text, as it comes. types: that its schema allows."""

    def __init__(self, types: frozenset[str]) -> None:
        self._types = types
        self._collected = ""
        self._streaming = False

    def push(self, text: str) -> str:
        if self._streaming:
            return _letters(text)
        self._collected += text
        if not self._collected or not self._is_string():
            return ""
        self._streaming = True
        return '"' + _letters(self._collected)

    def end(self) -> str:
        if self._streaming:
            return '"'
        return json_of(self._collected, self._types)

    def _is_string(self) -> bool:
        """Whether the beginning shows that the value is a string."""
        if "string" not in self._types or self._types - {"string", "null"}:
            return False
        return self._types == {"string"} or not "null".startswith(self._collected.strip().lower())


def _letters(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)[1:-1]


def _no_name(text: str) -> bool:
    """Whether no more text can make a name of it."""
    return "\n" in text[: _LONGEST_NAME + 1] or text[:1] == ">" or len(text) > _LONGEST_NAME
