"""Finds the end of a JSON object or list in text that comes in pieces.

One value, one thread. The text is not checked: what a model writes is passed on as it is.
Invariant: a tag inside a string is part of the string, except behind a line break, which no JSON
string holds.
"""

import re

_IN_STRING = re.compile(r'["\\\n]')
_OUTSIDE = re.compile(r'["{}\[\]<]')
_OPENING, _CLOSING = "{[", "}]"


class JsonText:
    """ended: the value is whole. broken: the tag came before its end."""

    def __init__(self, tag: str) -> None:
        """tag: ends the text around the value."""
        self._tag = tag
        self._depth = 0
        self._in_string = False
        self._escaped = False
        self.ended = False
        self.broken = False

    def read(self, text: str, at: int = 0) -> int:
        """How far the value goes in `text`, whose earlier letters were read before. What is left,
        while the value has not ended, may be the tag's beginning. REQUIRES: not ended or broken."""
        while at < len(text):
            if self._escaped:
                self._escaped = False
                at += 1
                continue
            found = (_IN_STRING if self._in_string else _OUTSIDE).search(text, at)
            if found is None:
                return len(text)
            at, letter = found.start(), found.group()
            if letter in "\n<":
                tag = self._tag if letter == "<" else f"\n{self._tag}"
                ahead = text[at : at + len(tag)]
                self.broken = ahead == tag
                if tag.startswith(ahead):
                    return at
            at += 1
            self._pass(letter)
            if self.ended:
                return at
        return at

    def _pass(self, letter: str) -> None:
        if letter == '"':
            self._in_string = not self._in_string
        elif letter == "\\":
            self._escaped = True
        elif letter in _OPENING:
            self._depth += 1
        elif letter in _CLOSING:
            self._depth -= 1
            self.ended = self._depth == 0
