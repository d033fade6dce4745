"""Finds the end of a JSON string, object or list in text that comes in pieces.

One value, one thread. The text is not checked: what a model writes is passed on as it is.
Invariants: a tag inside a string is part of the string, except behind a line break, which no JSON
string holds; a letter is looked at once.
"""

import re

_IN_STRING = re.compile(r'["\\\n]')
# Brackets of one kind are read at once.
_OUTSIDE = re.compile(r'["<]|[{\[]+|[}\]]+')
_CLOSING = "}]"


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
                at = self._nest(at, found.end(), letter in _CLOSING)
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
