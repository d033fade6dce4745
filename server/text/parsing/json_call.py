"""Reads a tool call as Hermes and Qwen3 write it: {"name": ..., "arguments": {...}}.

Owns the text that is not read yet. One call, one thread. Invariants: arguments are given out as
they are written, letter by letter; a call begins once its name and the arguments' first brace are
there.
"""

import json
import re
from collections.abc import Callable

from tasuki.server.text.answer_parts import AnswerItem, CallEnd

from .call_reader import CLOSE, CallState, call_arguments, call_begin
from .json_text import JsonText

_STRING = re.compile(r'"(?:[^"\\]|\\.)*"', re.DOTALL)
_KEY = re.compile(rf"[\s,]*({_STRING.pattern})\s*:\s*(?=\S)", re.DOTALL)
_WORD = re.compile(r'[^\s,}\]"]+(?=[\s,}<])')


class JsonCall:
    """As a CallReader."""

    def __init__(self, number: int) -> None:
        self.state = CallState.READING
        self.left = ""
        self._number = number
        self._held = ""
        # All of the text, until the call has begun.
        self._raw = ""
        self._name = ""
        # Of arguments that come before the name.
        self._early = ""
        self._begun = False
        self._key = ""
        self._arguments = JsonText(CLOSE)
        self._step: Callable[[list[AnswerItem]], bool] = self._open

    def push(self, text: str) -> list[AnswerItem]:
        self._held += text
        if not self._begun:
            self._raw += text
        items: list[AnswerItem] = []
        while self.state is CallState.READING and self._step(items):
            pass
        return items

    def finish(self) -> list[AnswerItem]:
        if not self._begun:
            self._refuse()
            return []
        if self._step == self._pass_arguments:
            return call_arguments(self._number, self._held)
        return [CallEnd(self._number)]

    def _open(self, items: list[AnswerItem]) -> bool:
        """REQUIRES of the text: a brace is its first letter but white space."""
        _, brace, self._held = self._held.partition("{")
        if brace:
            self._step = self._read_key
        return bool(brace)

    def _read_key(self, items: list[AnswerItem]) -> bool:
        key = _KEY.match(self._held)
        if key is not None:
            self._key = str(_loaded(key[1]))
            self._held = self._held[key.end() :]
            self._step = self._read_value
            return True
        text = self._held.lstrip(" \t\r\n,")
        if text.startswith("}"):
            return self._end(text[1:], items)
        if text.startswith(CLOSE):
            return self._end(text, items)
        string = _STRING.match(text)
        if string is not None and text[string.end() :].lstrip()[:1] not in ("", ":"):
            return self._give_up(items)
        if text and text[0] != '"' and not CLOSE.startswith(text):
            return self._give_up(items)
        return False

    def _read_value(self, items: list[AnswerItem]) -> bool:
        ready = self._name and not self._begun
        if self._key == "arguments" and ready and self._held.startswith("{"):
            self._begin(items)
            self._step = self._pass_arguments
            return True
        length = _value_length(self._held)
        if length is None:
            return self._give_up(items) if CLOSE in self._held else False
        text, self._held = self._held[:length], self._held[length:]
        self._step = self._read_key
        if self._key == "name":
            name = _loaded(text)
            if not isinstance(name, str) or not name:
                return self._give_up(items)
            self._name = name
        elif self._key == "arguments":
            early = _object_text(text)
            if early is None:
                return self._give_up(items)
            self._early = early
        if self._name and self._early and not self._begun:
            self._begin(items)
            items += call_arguments(self._number, self._early)
        return True

    def _pass_arguments(self, items: list[AnswerItem]) -> bool:
        length = self._arguments.read(self._held)
        items += call_arguments(self._number, self._held[:length])
        self._held = self._held[length:]
        if self._arguments.broken:
            return self._end(self._held, items)
        if self._arguments.ended:
            self._step = self._read_key
        return self._arguments.ended

    def _skip(self, items: list[AnswerItem]) -> bool:
        """What follows a call that was begun and then written in no format."""
        place = self._held.find(CLOSE)
        if place < 0:
            self._held = self._held[-len(CLOSE) :]
            return False
        return self._end(self._held[place:], items)

    def _begin(self, items: list[AnswerItem]) -> None:
        self._begun = True
        self._raw = ""
        items.append(call_begin(self._number, self._name))

    def _end(self, left: str, items: list[AnswerItem]) -> bool:
        if not self._name:
            return self._refuse()
        if not self._begun:
            self._begin(items)
            items += call_arguments(self._number, "{}")
        items.append(CallEnd(self._number))
        self.left = left
        self.state = CallState.ENDED
        return False

    def _give_up(self, items: list[AnswerItem]) -> bool:
        if not self._begun:
            return self._refuse()
        self._step = self._skip
        return True

    def _refuse(self) -> bool:
        self.left = self._raw
        self.state = CallState.NO_CALL
        return False


def _value_length(text: str) -> int | None:
    """Of the JSON value that `text` begins with; None where its end is not there yet."""
    if text[0] == '"':
        string = _STRING.match(text)
        return None if string is None else string.end()
    if text[0] in "{[":
        value = JsonText(CLOSE)
        length = value.read(text)
        return length if value.ended else None
    word = _WORD.match(text)
    return None if word is None else word.end()


def _object_text(text: str) -> str | None:
    """Arguments as an object's text: as an object, as a string that holds one, or none."""
    if text.startswith("{"):
        return text
    value = _loaded(text)
    if value is None:
        return "{}" if text == "null" else None
    if isinstance(value, str) and isinstance(_loaded(value), dict):
        return value
    return None


def _loaded(text: str) -> object:
    """None also of what is no JSON."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None
