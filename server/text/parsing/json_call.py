"""A reader of tool calls in the format of Hermes and Qwen3: {"name": ..., "arguments": {...}}.

JsonCall owns the text not read yet, and all of the text until the call has begun. One call, one
thread. Invariants: arguments are returned as they are written, character by character, as far as
they are JSON and can be closed. A call begins once its name and the arguments' first brace have
come. Each character is read once.

JsonText finds the end of a JSON string, object or list in text arriving in segments. One value, one
thread. The text is not checked: it is passed on as the model writes it. Invariants: a tag inside a
string is part of the string, except after a line break, because no JSON string holds a line break.
Each character is read once.

ClosableJson passes on the text of a model's JSON object, only as far as it can be closed. One
object, one thread. Invariants: after any character, the text so far and closing() form one JSON
object. A key is passed on with the first character of its value. A number or a word is passed on
once it is complete, so closing invents nothing. Each character is read once.
"""

import json
import re
from io import StringIO

from tasuki.server.text.json_reading import MAX_DEPTH, is_json
from tasuki.server.text.text_answer import AnswerItem, CallArguments, CallEnd

from .call_reader import CLOSE, LONGEST_NAME, CallState, Step, call_arguments, call_begin
from .parameter_types import ParameterTypes

_IN_STRING = re.compile(r'["\\\n]')
# Runs of brackets of one kind are read at once.
_OUTSIDE = re.compile(r'["<]|[{\[]+|[}\]]+')
_CLOSERS = "}]"


class JsonText:
    """Finder of the end of one JSON value. ended: True once the value is complete. broken: True if
    the tag came before its end, or the value nests too deeply."""

    def __init__(self, tag: str, deepest: int | None = None) -> None:
        """tag: tag after the value; it ends the text even if the value is incomplete. deepest:
        allowed nesting levels of objects and lists; None: no limit."""
        self._tag = tag
        self._deepest = deepest
        self._depth = 0
        self._in_string = False
        self._escaped = False
        self.ended = False
        self.broken = False

    def read(self, text: str, at: int = 0) -> int:
        """Read the value further. Return the index in `text` after the last read character. at:
        index of the first character not read before.

        If the value has not ended, the characters from the returned index on may begin the tag;
        pass them again with more text. Such a part of a tag may have a line break before it.
        REQUIRES: the value is neither ended nor broken.
        """
        while at < len(text):
            if self._escaped:
                self._escaped = False
                at += 1
                continue
            found = (_IN_STRING if self._in_string else _OUTSIDE).search(text, at)
            if found is None:
                return len(text)
            at, letter = found.start(), text[found.start()]
            if letter in "\n<":
                tag = self._tag if letter == "<" else f"\n{self._tag}"
                ahead = text[at : at + len(tag)]
                self.broken = ahead == tag
                if tag.startswith(ahead):
                    return at
                at += 1
            elif letter == "\\":
                self._escaped = True
                at += 1
            elif letter == '"':
                self._in_string = not self._in_string
                at += 1
                self.ended = not self._in_string and self._depth == 0
            else:
                at = self._nest(at, found.end(), letter in _CLOSERS)
            if self.ended or self.broken:
                return at
        return at

    def _nest(self, at: int, end: int, closing: bool) -> int:
        """Count the brackets of one kind (opening or closing) in a range of text. Return the index
        after the last counted one. closing: they are closing brackets."""
        if closing:
            closed = min(end - at, self._depth)
            self._depth -= closed
            self.ended = self._depth == 0
            return at + closed
        self._depth += end - at
        if self._deepest is not None and self._depth > self._deepest:
            self.broken = True
            return end - (self._depth - self._deepest) + 1
        return end


_JSON_SPACE = re.compile(r"[ \t\r\n]*")
_PLAIN = re.compile(r'[^"\\\x00-\x1f]+')
_JSON_WORD = re.compile(r'[^\s,}\]\[{":<]*')
_ESCAPE = re.compile(r'\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4})')
_TORN_ESCAPE = re.compile(r"\\(?:u[0-9a-fA-F]{0,3})?\Z")
_HIGH_HALF = re.compile(r"\\u[dD][89abAB][0-9a-fA-F]{2}")
_LOW_HALF = re.compile(r"\\u[dD][c-fC-F][0-9a-fA-F]{2}")
_TORN_LOW_HALF = re.compile(r"(?:\\(?:u(?:[dD](?:[c-fC-F][0-9a-fA-F]?)?)?)?)?\Z")
_NO_CHARACTER = "\\ufffd"
_CLOSER_OF = {"{": "}", "[": "]"}
_LONGEST_WORD = 512


class ClosableJson:
    """Filter of a JSON object's text, to be closed after any character. ended: True once the object
    is complete. broken: True if the text was no JSON, or the tag came. keys: top-level keys with a
    value already begun."""

    def __init__(self, tag: str) -> None:
        """tag: tag after the object; it ends the text. Inside a string the tag counts only after a
        line break, because no JSON string holds a line break."""
        self._line_and_tag = f"\n{tag}"
        self._closers: list[str] = []
        # Text read but not passed on: a comma, a key, a colon, and white space.
        self._pending: list[str] = []
        self._in_string = False
        self._key: str | None = None
        """The key being read; None outside of keys."""
        self._last_key = ""
        self._word = ""
        self._awaits = "{"
        """The tokens allowed next, as one character. { is the object. k is a key. K is a key, or
        the object's end. : is a colon. v is a value. V is a value, or the list's end. The comma is
        a comma, or the end after a value."""
        self.ended = False
        self.broken = False
        self.keys: set[str] = set()

    def read(self, text: str, at: int = 0) -> tuple[str, int]:
        """Read the object further. Return the text to pass on, and the index in `text` after the
        last read character. Unless the object is ended or broken, pass the characters from this
        index on again, with more text.

        at: index of the first character not read before. REQUIRES: the object is neither ended nor
        broken.
        """
        passed: list[str] = []
        while at < len(text) and not self.ended and not self.broken:
            before = at, self._word
            at = self._step(text, at, passed)
            if (at, self._word) == before:
                break
        return "".join(passed), at

    def takes_letters(self, text: str) -> bool:
        """Return True if the text has only characters of an open string value, so it can be passed
        on without read(). REQUIRES: the object is neither ended nor broken, and all text before was
        read."""
        return self._in_string and self._key is None and _PLAIN.fullmatch(text) is not None

    def finish(self, was_cut: bool) -> str:
        """Return the last text and the closing characters, once the answer has ended. was_cut: the
        answer was cut, so an open number or word may be incomplete and is left out."""
        rest = ""
        if not was_cut and self._word and not self.ended:
            passed: list[str] = []
            self._take_word(passed)
            rest = "".join(passed)
        return rest + self.closing()

    def closing(self) -> str:
        """Return the characters to close the object after the text so far. REQUIRES: the object's
        first brace was read."""
        quote = '"' if self._in_string and self._key is None else ""
        return quote + "".join(reversed(self._closers))

    def _step(self, text: str, at: int, passed: list[str]) -> int:
        """Read one token of the JSON text from index `at` on. Return the next index, or `at` if
        more characters decide. passed: receives the text to pass on."""
        if self._in_string:
            return self._read_string(text, at, passed)
        if self._word:
            return self._read_word(text, at, passed)
        found = _JSON_SPACE.match(text, at)
        assert found is not None
        if found.end() > at:
            (self._pending if self._pending else passed).append(found.group())
            return found.end()
        letter = text[at]
        if letter == '"' and self._awaits in "kKvV":
            return self._begin_string(at, passed)
        if letter in "{[" and (self._awaits in "vV" or (self._awaits == "{" == letter)):
            return self._open(letter, at, passed)
        if letter in "}]" and self._awaits in ("kK," if letter == "}" else "vV,"):
            return self._close(letter, at, passed)
        if letter == "," and self._awaits == ",":
            self._pending.append(letter)
            self._awaits = "k" if self._closers[-1] == "}" else "v"
            return at + 1
        if letter == ":" and self._awaits == ":":
            self._pending.append(letter)
            self._awaits = "v"
            return at + 1
        if self._awaits in "vV" and letter not in '}],:<"':
            return self._read_word(text, at, passed)
        self.broken = True
        return at

    def _begin_string(self, at: int, passed: list[str]) -> int:
        self._in_string = True
        if self._awaits in "kK":
            self._key = ""
        else:
            self._begin_value(passed)
            passed.append('"')
        return at + 1

    def _open(self, letter: str, at: int, passed: list[str]) -> int:
        self._begin_value(passed)
        passed.append(letter)
        self._closers.append(_CLOSER_OF[letter])
        self._awaits = "K" if letter == "{" else "V"
        return at + 1

    def _close(self, letter: str, at: int, passed: list[str]) -> int:
        if self._closers[-1] != letter:
            self.broken = True
            return at
        passed.append(self._closers.pop())
        self._pending.clear()
        self._awaits = ","
        self.ended = not self._closers
        return at + 1

    def _begin_value(self, passed: list[str]) -> None:
        """Pass on the text held back before a value: a comma, a key, a colon, white space."""
        if len(self._closers) == 1:
            self.keys.add(self._last_key)
        passed += self._pending
        self._pending.clear()

    def _read_word(self, text: str, at: int, passed: list[str]) -> int:
        found = _JSON_WORD.match(text, at)
        assert found is not None
        self._word += found.group()
        if len(self._word) > _LONGEST_WORD or not self._word:
            self.broken = True
            return at
        if found.end() < len(text):
            self._take_word(passed)
        return found.end()

    def _take_word(self, passed: list[str]) -> None:
        """Pass on a number or word (such as true), now complete."""
        word, self._word = self._word, ""
        try:
            json.loads(word, parse_constant=_refuse)
        except ValueError:
            word = word.lower()
            if word not in ("true", "false", "null", "none"):
                self.broken = True
                return
            word = "null" if word == "none" else word
        self._begin_value(passed)
        passed.append(word)
        self._awaits = ","

    def _read_string(self, text: str, at: int, passed: list[str]) -> int:
        found = _PLAIN.match(text, at)
        if found is not None:
            self._letters(found.group(), passed)
            return found.end()
        letter = text[at]
        if letter == '"':
            self._end_string(passed)
            return at + 1
        if letter == "\\":
            return self._read_escape(text, at, passed)
        if letter == "\n":
            ahead = text[at : at + len(self._line_and_tag)]
            if ahead == self._line_and_tag:
                self.broken = True
                return at
            if self._line_and_tag.startswith(ahead):
                return at
        # JSON does not allow this letter here, but models write it.
        self._letters(json.dumps(letter)[1:-1], passed)
        return at + 1

    def _read_escape(self, text: str, at: int, passed: list[str]) -> int:
        if _TORN_ESCAPE.match(text, at):
            return at
        found = _ESCAPE.match(text, at)
        if found is None:
            self._letters("\\\\", passed)
            return at + 1
        escape, end = found.group(), found.end()
        if _LOW_HALF.match(escape):
            escape = _NO_CHARACTER
        elif _HIGH_HALF.match(escape):
            low = _LOW_HALF.match(text, end)
            if low is None and _TORN_LOW_HALF.match(text, end):
                return at
            escape = _NO_CHARACTER if low is None else escape + low.group()
            end = end if low is None else low.end()
        self._letters(escape, passed)
        return end

    def _letters(self, letters: str, passed: list[str]) -> None:
        if self._key is None:
            passed.append(letters)
            return
        self._key += letters
        self.broken = len(self._key) > LONGEST_NAME

    def _end_string(self, passed: list[str]) -> None:
        self._in_string = False
        if self._key is None:
            passed.append('"')
            self._awaits = ","
            return
        self._pending.append(f'"{self._key}"')
        if len(self._closers) == 1:
            self._last_key = str(json.loads(f'"{self._key}"'))
        self._key = None
        self._awaits = ":"


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is no JSON")


_NAME, _ARGUMENTS = "name", "arguments"
_LONGEST_STRING = LONGEST_NAME + len('""')
_SPACE = re.compile(r"\s*")
_BETWEEN_VALUES = re.compile(r"[\s,]*")
_WORD = re.compile(r'[^\s,}\]"<]*')


class JsonCall:
    """A CallReader for calls in the format {"name": ..., "arguments": {...}}. REQUIRES: the text's
    first character is a brace."""

    def __init__(self, number: int, types: ParameterTypes) -> None:
        """number: index of the call in the answer. types: parameter types of the request's
        tools."""
        self.state = CallState.READING
        self.left = ""
        self.decided = 0
        self._number = number
        self._types = types
        # The text not read yet, and the place in it.
        self._text = ""
        self._at = 0
        # All of the text until the call has begun, and its number of letters.
        self._raw = StringIO()
        self._letters = 0
        self._name = ""
        # Arguments arriving before the name.
        self._early = ""
        self._begun = False
        self._arguments = ClosableJson(CLOSE)
        self._key = ""
        # The value or key being read.
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
        # The rest is shorter than a tag or two escapes.
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

    # Each step continues from its place, and returns True if there is more to read.

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
            # The call is complete already: ignore further values.
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
        """Read a value without quotes and brackets: a number, true, false or null."""
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
        """Skip the rest of a begun call up to its closing tag, because it continues in no known
        format."""
        place = self._text.find(CLOSE, self._at)
        if place < 0:
            self._at = max(self._at, len(self._text) - len(CLOSE) + 1)
            return False
        self._at = place
        return self._end(items)

    def _letter_behind(self, passed: re.Pattern[str]) -> str:
        """Skip characters matching `passed`. Return the next character; empty if it has not arrived
        yet."""
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
        """Continue reading the current value or key. Return False if it is broken, or has more than
        `longest` characters."""
        within = self._collect(self._value.read(self._text, self._at), longest)
        return within and not self._value.broken

    def _collect(self, end: int, longest: int | None) -> bool:
        """Take the characters of the current value up to index `end`. Return False if the value has
        more than `longest` characters; the next character to read is then the first surplus one."""
        if longest is not None and self._size + end - self._at > longest:
            self._at += longest - self._size
            return False
        self._size += end - self._at
        if self._step == self._pass_key or self._key in (_NAME, _ARGUMENTS):
            self._collected.write(self._text[self._at : end])
        self._at = end
        return True

    def _take(self, items: list[AnswerItem]) -> bool:
        """Use the complete value of a key of the call: its name or its arguments. Return True if
        the next step may read."""
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
    """Return the JSON text of the arguments' object. The model may write it as an object, as a
    string with an object in it, or as null. Return None for every other value."""
    if text.startswith("{"):
        return text
    value = _loaded(text)
    if value is None:
        return "{}" if text == "null" else None
    if isinstance(value, str) and value.lstrip().startswith("{") and is_json(value):
        return value
    return None


def _loaded(text: str) -> object:
    """Return the value of a JSON text. Return None for null, and for text other than JSON."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None
