"""Reads a tool call as Hermes and Qwen3 write it: {"name": ..., "arguments": {...}}.

Owns the text that is not read yet, and all of the text until the call has begun. One call, one
thread. Invariants: arguments are given out as they are written, letter by letter, so far as they
are JSON and can be closed; a call begins once its name and the arguments' first brace are there; a
letter is looked at once.
"""

import json
import re
from io import StringIO

from tasuki.server.text.json_reading import MAX_DEPTH, is_json
from tasuki.server.text.text_answer import AnswerItem, CallArguments, CallEnd

from .call_reader import CLOSE, LONGEST_NAME, CallState, Step, call_arguments, call_begin
from .json_stream import ClosableJson, JsonText
from .parameter_types import ParameterTypes

_NAME, _ARGUMENTS = "name", "arguments"
_LONGEST_STRING = LONGEST_NAME + len('""')
_SPACE = re.compile(r"\s*")
_BETWEEN_VALUES = re.compile(r"[\s,]*")
_WORD = re.compile(r'[^\s,}\]"<]*')


class JsonCall:
    """As a CallReader. REQUIRES: the first letter is a brace."""

    def __init__(self, number: int, types: ParameterTypes) -> None:
        """types: those of the request's tools."""
        self.state = CallState.READING
        self.left = ""
        self.decided = 0
        self._number = number
        self._types = types
        # The piece, and what was left of those before; the place in it.
        self._text = ""
        self._at = 0
        # All of the text, until the call has begun, and its letters.
        self._raw = StringIO()
        self._letters = 0
        self._name = ""
        # Arguments that come before the name.
        self._early = ""
        self._begun = False
        self._arguments = ClosableJson(CLOSE)
        self._key = ""
        # The value, or the key, that is being read.
        self._value = JsonText(CLOSE)
        self._collected = StringIO()
        self._size = 0
        self._step: Step = self._open

    def letters(self, text: str) -> CallArguments | None:
        is_open = self._at == len(self._text) and self._step == self._pass_arguments
        if is_open and self._arguments.takes_letters(text):
            return CallArguments(self._number, text)
        return None

    def push(self, text: str) -> list[AnswerItem]:
        if not self._begun:
            self._raw.write(text)
            self._letters += len(text)
        # Fewer letters are left than a tag or two escapes have.
        self._text = self._text[self._at :] + text
        self._at = 0
        items: list[AnswerItem] = []
        while self.state is CallState.READING and self._step(items):
            pass
        return items

    def finish(self, was_cut: bool) -> list[AnswerItem]:
        if not self._begun:
            self._at = len(self._text)
            self._refuse()
            return []
        is_open = self._step == self._pass_arguments
        rest = self._arguments.finish(was_cut) if is_open else ""
        self.state = CallState.ENDED
        return [*call_arguments(self._number, rest), self._call_end(was_cut and is_open)]

    # Each step reads on from its place; returns whether there is more to read.

    def _open(self, items: list[AnswerItem]) -> bool:
        self._at += len("{")
        self._step = self._read_key
        return True

    def _read_key(self, items: list[AnswerItem]) -> bool:
        letter = self._letter_behind(_BETWEEN_VALUES)
        if letter == '"':
            self._await_value(JsonText(CLOSE), self._pass_key)
            return True
        if letter == "}":
            self._at += len("}")
            return self._end(items)
        ahead = self._text[self._at : self._at + len(CLOSE)]
        if ahead == CLOSE:
            return self._end(items)
        return False if CLOSE.startswith(ahead) else self._give_up()

    def _pass_key(self, items: list[AnswerItem]) -> bool:
        if not self._read_on(_LONGEST_STRING):
            return self._give_up()
        if not self._value.ended:
            return False
        self._key = str(_loaded(self._collected.getvalue()))
        self._step = self._pass_colon
        return True

    def _pass_colon(self, items: list[AnswerItem]) -> bool:
        letter = self._letter_behind(_SPACE)
        if letter != ":":
            return self._give_up() if letter else False
        self._at += len(":")
        self._step = self._open_value
        return True

    def _open_value(self, items: list[AnswerItem]) -> bool:
        letter = self._letter_behind(_SPACE)
        if not letter:
            return False
        if self._begun:
            # The call has all that it needs.
            self._key = ""
        if self._key == _ARGUMENTS and letter == "{" and self._name:
            self._begin(items)
            self._step = self._pass_arguments
        elif (self._key == _NAME and letter != '"') or (self._key == _ARGUMENTS and letter == "["):
            return self._give_up()
        elif letter in '"{[':
            deepest = None if self._key == _ARGUMENTS else MAX_DEPTH
            self._await_value(JsonText(CLOSE, deepest), self._pass_value)
        else:
            self._await_value(self._value, self._pass_word)
        return True

    def _pass_value(self, items: list[AnswerItem]) -> bool:
        if not self._read_on(_LONGEST_STRING if self._key == _NAME else None):
            return self._give_up()
        return self._value.ended and self._take(items)

    def _pass_word(self, items: list[AnswerItem]) -> bool:
        """Read a number, true, false or null."""
        found = _WORD.match(self._text, self._at)
        assert found is not None
        if not self._collect(found.end(), LONGEST_NAME):
            return self._give_up()
        if self._at == len(self._text):
            return False
        if not self._size or self._text[self._at] in ']"':
            return self._give_up()
        return self._take(items)

    def _pass_arguments(self, items: list[AnswerItem]) -> bool:
        passed, self._at = self._arguments.read(self._text, self._at)
        items += call_arguments(self._number, passed)
        if self._arguments.broken:
            items += call_arguments(self._number, self._arguments.closing())
            self._step = self._skip
        elif self._arguments.ended:
            self._step = self._read_key
        else:
            return False
        return True

    def _skip(self, items: list[AnswerItem]) -> bool:
        """Pass what follows a call that was begun and then written in no format."""
        place = self._text.find(CLOSE, self._at)
        if place < 0:
            self._at = max(self._at, len(self._text) - len(CLOSE) + 1)
            return False
        self._at = place
        return self._end(items)

    def _letter_behind(self, passed: re.Pattern[str]) -> str:
        """Pass such letters; return the next one, or none where there is none yet."""
        found = passed.match(self._text, self._at)
        assert found is not None
        self._at = found.end()
        return self._text[self._at : self._at + 1]

    def _await_value(self, value: JsonText, step: Step) -> None:
        self._value = value
        self._collected = StringIO()
        self._size = 0
        self._step = step

    def _read_on(self, longest: int | None) -> bool:
        """Read the value on; return False where it is broken or has more letters than `longest`."""
        within = self._collect(self._value.read(self._text, self._at), longest)
        return within and not self._value.broken

    def _collect(self, end: int, longest: int | None) -> bool:
        """Take the letters up to a place; return False where the value has more than `longest`,
        whose first one is the next letter then."""
        if longest is not None and self._size + end - self._at > longest:
            self._at += longest - self._size
            return False
        self._size += end - self._at
        if self._step == self._pass_key or self._key in (_NAME, _ARGUMENTS):
            self._collected.write(self._text[self._at : end])
        self._at = end
        return True

    def _take(self, items: list[AnswerItem]) -> bool:
        """Use the value, which is whole."""
        text = self._collected.getvalue()
        self._step = self._read_key
        if self._key == _NAME:
            name = _loaded(text)
            if not isinstance(name, str) or not name:
                return self._give_up()
            self._name = name
        elif self._key == _ARGUMENTS:
            early = _object_text(text)
            if early is None:
                return self._give_up()
            self._early = early
        if self._name and self._early and not self._begun:
            self._begin(items)
            passed, _ = self._arguments.read(self._early)
            items += call_arguments(self._number, passed + self._arguments.closing())
            self._early = ""
        return True

    def _begin(self, items: list[AnswerItem]) -> None:
        self._begun = True
        self._raw = StringIO()
        items.append(call_begin(self._number, self._name))

    def _end(self, items: list[AnswerItem]) -> bool:
        if not self._name:
            return self._refuse()
        if not self._begun:
            self._begin(items)
            items += call_arguments(self._number, "{}")
        items.append(self._call_end(False))
        self.left = self._text[self._at :]
        self.state = CallState.ENDED
        return False

    def _call_end(self, is_cut: bool) -> CallEnd:
        return CallEnd(self._number, is_cut, self._types.lacks(self._name, self._arguments.keys))

    def _give_up(self) -> bool:
        if not self._begun:
            return self._refuse()
        self._step = self._skip
        return True

    def _refuse(self) -> bool:
        self.left = self._raw.getvalue()
        self.decided = self._letters - (len(self._text) - self._at)
        self.state = CallState.NO_CALL
        return False


def _object_text(text: str) -> str | None:
    """Return the text of the arguments' object: of an object, of a string that holds one, or of
    null; None for every other value."""
    if text.startswith("{"):
        return text
    value = _loaded(text)
    if value is None:
        return "{}" if text == "null" else None
    if isinstance(value, str) and value.lstrip().startswith("{") and is_json(value):
        return value
    return None


def _loaded(text: str) -> object:
    """Return the value; None for text that is no JSON, too."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None
