"""JSON that a model writes, read as its text comes in pieces.

JsonText: Finds the end of a JSON string, object or list in text that comes in pieces. One value,
one thread. The text is not checked: what a model writes is passed on as it is. Invariants: a tag
inside a string is part of the string, except behind a line break, which no JSON string holds; a
letter is looked at once.

ClosableJson: Passes on the text of a model's JSON object, only so far as it can be closed. One
object, one thread. Invariants: at every place, the text so far and closing() are one JSON object; a
key is passed on with the first letter of its value, and a number or a word once it is whole, so
that closing invents nothing; a letter is looked at once.
"""

import json
import re

from .call_reader import LONGEST_NAME

_IN_STRING = re.compile(r'["\\\n]')
# Brackets of one kind are read at once.
_OUTSIDE = re.compile(r'["<]|[{\[]+|[}\]]+')
_CLOSERS = "}]"


class JsonText:
    """The place in one value. ended: the value is whole. broken: the tag came before its end, or
    it nests too deeply."""

    def __init__(self, tag: str, deepest: int | None = None) -> None:
        """tag: ends the text around the value. deepest: levels of objects and lists; None: as many
        as there are."""
        self._tag = tag
        self._deepest = deepest
        self._depth = 0
        self._in_string = False
        self._escaped = False
        self.ended = False
        self.broken = False

    def read(self, text: str, at: int = 0) -> int:
        """Return how far the value goes in `text`, whose earlier letters were read before.

        The letters behind that place, while the value has not ended, may be the tag's beginning:
        fewer than the tag has, and a line break. REQUIRES: neither ended nor broken."""
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
        """Read brackets of one kind; return the place behind the last one that counts."""
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


_SPACE = re.compile(r"[ \t\r\n]*")
_PLAIN = re.compile(r'[^"\\\x00-\x1f]+')
_WORD = re.compile(r'[^\s,}\]\[{":<]*')
_ESCAPE = re.compile(r'\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4})')
_TORN_ESCAPE = re.compile(r"\\(?:u[0-9a-fA-F]{0,3})?\Z")
_HIGH_HALF = re.compile(r"\\u[dD][89abAB][0-9a-fA-F]{2}")
_LOW_HALF = re.compile(r"\\u[dD][c-fC-F][0-9a-fA-F]{2}")
_TORN_LOW_HALF = re.compile(r"(?:\\(?:u(?:[dD](?:[c-fC-F][0-9a-fA-F]?)?)?)?)?\Z")
_NO_CHARACTER = "\\ufffd"
_CLOSER_OF = {"{": "}", "[": "]"}
_LONGEST_WORD = 512


class ClosableJson:
    """ended: the object is whole. broken: no JSON came, or the tag. keys: of the object, with a
    value that was begun."""

    def __init__(self, tag: str) -> None:
        """tag: ends the text around the object. Inside of a string it does so behind a line break
        alone, which no JSON string holds."""
        self._line_and_tag = f"\n{tag}"
        self._closers: list[str] = []
        # Read, and not passed on: a comma, a key, a colon, white space among them.
        self._pending: list[str] = []
        self._in_string = False
        self._key: str | None = None
        """The key that is being read."""
        self._last_key = ""
        self._word = ""
        self._awaits = "{"
        """May come next: { the object, k a key, K a key or the end, : a colon, v a value, V a value
        or the end of a list, and , a comma or the end behind a value."""
        self.ended = False
        self.broken = False
        self.keys: set[str] = set()

    def read(self, text: str, at: int = 0) -> tuple[str, int]:
        """Return the text to pass on, and how far `text` was read. The letters behind that place
        come again with more behind them, unless it has ended or broken.

        REQUIRES: neither ended nor broken."""
        passed: list[str] = []
        while at < len(text) and not self.ended and not self.broken:
            before = at, self._word
            at = self._step(text, at, passed)
            if (at, self._word) == before:
                break
        return "".join(passed), at

    def takes_letters(self, text: str) -> bool:
        """Whether the text is only letters of an open string, all to be passed on: nothing of it
        need be read. REQUIRES: as read(), and that was read as far as it came."""
        return self._in_string and self._key is None and _PLAIN.fullmatch(text) is not None

    def finish(self, was_cut: bool) -> str:
        """Return the last text and the closing letters. was_cut: an open number or word may lack
        letters, and is left out."""
        rest = ""
        if not was_cut and self._word and not self.ended:
            passed: list[str] = []
            self._take_word(passed)
            rest = "".join(passed)
        return rest + self.closing()

    def closing(self) -> str:
        """Return the letters to close the text so far. REQUIRES: it has the first brace."""
        quote = '"' if self._in_string and self._key is None else ""
        return quote + "".join(reversed(self._closers))

    def _step(self, text: str, at: int, passed: list[str]) -> int:
        """Read on from a place; return the next one, or the same where more letters decide."""
        if self._in_string:
            return self._read_string(text, at, passed)
        if self._word:
            return self._read_word(text, at, passed)
        found = _SPACE.match(text, at)
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
        """Pass on the text before a value."""
        if len(self._closers) == 1:
            self.keys.add(self._last_key)
        passed += self._pending
        self._pending.clear()

    def _read_word(self, text: str, at: int, passed: list[str]) -> int:
        found = _WORD.match(text, at)
        assert found is not None
        self._word += found.group()
        if len(self._word) > _LONGEST_WORD or not self._word:
            self.broken = True
            return at
        if found.end() < len(text):
            self._take_word(passed)
        return found.end()

    def _take_word(self, passed: list[str]) -> None:
        """Pass on a whole number or word."""
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
        # No letter that JSON allows here, and one that models write.
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
