"""Bounded reading of JSON from clients and models, and lenient reading of a call's arguments.

Limits on the number and depth of values in clients' JSON keep the cost of parsing in proportion to
its bytes. Pure; any thread. Counts in slices; other threads can run between slices.

read_arguments() reads the arguments of a tool call as an object. Pure functions; any thread.
Invariants: every text is read as an object, because a conversation with a call cut off by the
answer's length must be able to continue. A text cut off is closed at its end, so a template still
renders its written part. The cost is linear in the text: it is scanned once and parsed at most 5
times.
"""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

import msgspec
import numpy as np

MAX_DEPTH = 64
MAX_VALUES = 1 << 20
"""Largest number of values in a client's JSON: enough for a prompt of a million token ids."""

_FEW = 1 << 12
"""Number of values found one by one, before a body's are counted."""

_HOLDERS = frozenset({dict, list})
_MANY = 16
_SLICE = 1 << 18
_BLOCK = 1 << 11
"""Number of characters checked in one step. Python's json rejects a number with more than twice as
many digits, so such a number fills at least one block."""

Letters: TypeAlias = np.ndarray[tuple[int], np.dtype[np.uint8]]
_SEPARATORS = (b",", b"[", b"{")
_QUOTE, _BACKSLASH = b'"', b"\\"
# By byte: the change of the nesting level after it.
_STEPS = np.zeros(256, dtype=np.int8)
_STEPS[[*b"[{"]] = 1
_STEPS[[*b"]}"]] = -1


def holds_too_many_values(body: bytes | bytearray) -> bool:
    """Return True if the JSON in `body` has over MAX_VALUES commas, objects and lists together,
    outside its strings.

    No value is built. Text other than JSON is counted in the same way. A body of pictures has few
    such letters, and finding these is faster than counting.
    """
    if len(body) <= MAX_VALUES or _has_few_values(body):
        return False
    if sum(body.count(mark, at, at + _SLICE) for at in _slices(body) for mark in _SEPARATORS) <= (
        MAX_VALUES
    ):
        return False
    # Too many, unless they are letters of strings.
    values = 0
    for outside in _outside_strings(body):
        values += sum(int(np.count_nonzero(outside == ord(mark))) for mark in _SEPARATORS)
        if values > MAX_VALUES:
            return True
    return False


def _has_few_values(body: bytes | bytearray) -> bool:
    """Return True if all of `body` has less than _FEW commas, objects and lists, also those inside
    its strings."""
    found = 0
    for begin in _slices(body):
        for mark in _SEPARATORS:
            at = body.find(mark, begin, begin + _SLICE)
            while at >= 0:
                found += 1
                if found == _FEW:
                    return False
                at = body.find(mark, at + 1, begin + _SLICE)
    return True


def is_json(text: str) -> bool:
    """Return True if the text is one JSON value. No value is built, so a megabyte takes only
    milliseconds."""
    try:
        msgspec.json.decode(text.encode(), type=msgspec.Raw)
    except (UnicodeEncodeError, msgspec.DecodeError, RecursionError):
        return False
    return True


def nested_too_deeply(value: Any) -> bool:
    """Return True if objects and lists in the value are nested more than MAX_DEPTH levels deep."""
    level = [value] if type(value) in _HOLDERS else []
    for _ in range(MAX_DEPTH):
        deeper: list[Any] = []
        for item in level:
            children = item.values() if type(item) is dict else item
            # Do not visit a prompt's thousands of token ids one by one.
            if len(children) <= _MANY or not _HOLDERS.isdisjoint(map(type, children)):
                deeper += [child for child in children if type(child) in _HOLDERS]
        if not deeper:
            return False
        level = deeper
    return True


def _slices(body: bytes | bytearray) -> range:
    return range(0, len(body), _SLICE)


def _outside_strings(body: bytes | bytearray) -> Iterator[Letters]:
    """Yield the bytes of a JSON text outside of its strings, slice by slice."""
    strings = _Strings()
    for begin in _slices(body):
        yield strings.outside(body[begin : begin + _SLICE])


class _Strings:
    """Finder of the strings in a JSON text arriving in segments. One thread."""

    def __init__(self) -> None:
        self._in_string = np.uint8(0)
        # A backslash at the end, waiting for its letter.
        self._escape = b""

    def outside(self, piece: bytes | bytearray) -> Letters:
        """Return the bytes of the next segment outside of strings."""
        piece = self._escape + piece
        self._escape = b""
        if (len(piece) - len(piece.rstrip(_BACKSLASH))) % 2:
            piece, self._escape = piece[:-1], _BACKSLASH
        # Every remaining quote begins or ends a string.
        piece = piece.replace(_BACKSLASH * 2, b"").replace(_BACKSLASH + _QUOTE, b"")
        letters = np.frombuffer(piece, dtype=np.uint8)
        inside = np.bitwise_xor.accumulate((letters == ord(_QUOTE)).view(np.uint8))
        inside ^= self._in_string
        if len(inside):
            self._in_string = inside[-1]
        outside: Letters = letters[inside == 0]
        return outside


class JsonDepth:
    """Checker of the nesting depth of a JSON text arriving in segments; no value is built. One
    thread.

    Text is checked in blocks, so neither one token nor the text's end costs much.
    """

    def __init__(self) -> None:
        self._strings = _Strings()
        self._waiting: list[str] = []
        self._letters = 0
        self._level = 0
        self._deepest = 0
        self._has_long_number = False

    def add(self, text: str) -> None:
        """Add the next segment of the JSON text."""
        self._waiting.append(text)
        self._letters += len(text)
        if self._letters >= _BLOCK:
            self._look()

    def is_bounded(self) -> bool:
        """Return True if the text so far nests at most MAX_DEPTH levels, and has no number of
        several thousand digits. Python's json rejects such a number."""
        self._look()
        return self._deepest <= MAX_DEPTH and not self._has_long_number

    def _look(self) -> None:
        block = "".join(self._waiting)
        self._waiting.clear()
        self._letters = 0
        for begin in range(0, len(block), _BLOCK):
            piece = block[begin : begin + _BLOCK]
            self._has_long_number |= len(piece) == _BLOCK and piece.isdecimal()
            steps = _STEPS[self._strings.outside(piece.encode(errors="surrogatepass"))]
            if len(steps):
                levels = np.cumsum(steps, dtype=np.int32)
                self._deepest = max(self._deepest, self._level + int(levels.max()))
                self._level += int(levels[-1])


_CLOSING = {"{": "}", "[": "]"}
# Beginning of the escape of every half of a character.
_HALF = "\\ud"
# Find the next significant letter outside strings; a found quote begins an unfinished string.
# Without a letter the match ends at the text's end, or after a number of strings, so other threads
# may run.
_SIGN = re.compile(
    r'(?:[^"{}\[\],]++|"[^"\\]*+(?:\\.[^"\\]*+)*+"){0,4096}+(["{}\[\],]?)', re.DOTALL
)
UNREAD = "arguments"
"""Name of the only argument of a call with unreadable arguments. Its value is their text."""


def read_arguments(text: str) -> Mapping[str, Any]:
    """Return the arguments of a tool call as an object. text: JSON written by the model, possibly
    cut off. An empty text, or null, is an empty object. Unpaired surrogates become U+FFFD.

    If the text is no object, or is nested deeper than MAX_DEPTH, return an object with the text
    under the name UNREAD.
    """
    if not text.strip():
        return {}
    for candidate in _readings(text):
        try:
            value = json.loads(candidate)
        except (ValueError, RecursionError):
            continue
        if value is None:
            return {}
        if isinstance(value, dict) and not nested_too_deeply(value):
            return _whole_characters(value) if _HALF in text.lower() else value
        break
    return {UNREAD: text}


def read_whole_arguments(text: str) -> dict[str, Any]:
    """Return the object of a complete JSON text. Return an empty object for any other text, and for
    an object nested deeper than MAX_DEPTH."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    if not isinstance(value, dict) or nested_too_deeply(value):
        return {}
    return _whole_characters(value) if _HALF in text.lower() else value


def _readings(text: str) -> Iterator[str]:
    """Yield the text itself, then completions of it in case it was cut off at its end."""
    yield text
    yield from _closed(text)


def _whole_characters(value: dict[str, Any]) -> dict[str, Any]:
    """Return the object with each unpaired surrogate replaced by U+FFFD, because no tokenizer can
    encode one."""
    text = json.dumps(value, ensure_ascii=False).encode("utf-16-le", "surrogatepass")
    whole: dict[str, Any] = json.loads(text.decode("utf-16-le", "replace"))
    return whole


def _closed(text: str) -> Iterator[str]:
    """Yield completions of a JSON text cut off at its end: closed at its end, then closed after its
    last complete value.

    Yield nothing if the brackets do not match, or nest deeper than MAX_DEPTH.
    """
    closing: list[str] = []
    # The last possible place for closing the text.
    whole = 0
    in_string = False
    for sign in _SIGN.finditer(text):
        letter = sign[1]
        if letter == '"':
            in_string = True
            break
        if letter == ",":
            whole = sign.start(1)
        elif letter:
            whole = sign.end()
            if letter in _CLOSING:
                closing.append(_CLOSING[letter])
                if len(closing) > MAX_DEPTH:
                    return
            elif not closing or closing.pop() != letter:
                return
    # No bracket came after the last place, so the same letters close both.
    end = "".join(reversed(closing))
    if in_string:
        yield from (f'{cut}"{end}' for cut in _without_escape(text))
    else:
        yield text + end
    yield text[:whole] + end


def _without_escape(text: str) -> Iterator[str]:
    """Yield the text, then the text without a backslash escape possibly cut off at its end. Such an
    incomplete escape has at most 5 characters."""
    yield text
    torn = text.rfind("\\", max(len(text) - 5, 0))
    if torn >= 0:
        yield text[:torn]
        yield text[: torn - 1]
