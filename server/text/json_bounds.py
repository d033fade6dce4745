"""Bounds on the number and depth of values in clients' JSON, so that parsing costs no more than its
bytes suggest.

Pure; any thread. Counts in slices, between which other threads can run.
"""

from collections.abc import Iterable
from typing import Any

MAX_DEPTH = 64
MAX_VALUES = 1 << 20
"""As many as a prompt of a million token ids needs."""

_HOLDERS = frozenset({dict, list})
_SLICE = 1 << 18
_QUOTE, _BACKSLASH = b'"', b"\\"


def holds_too_many_values(body: bytes) -> bool:
    """Whether the JSON in `body` has over MAX_VALUES commas, objects and lists, before any of it is
    built. What is no JSON is only counted as if it were."""
    if _separators(body, 0, len(body)) <= MAX_VALUES:
        return False
    # Too many, unless they are letters of strings.
    values = position = 0
    while values <= MAX_VALUES:
        quote = body.find(_QUOTE, position)
        values += _separators(body, position, len(body) if quote < 0 else quote)
        if quote < 0:
            break
        position = _string_end(body, quote + 1)
    return values > MAX_VALUES


def nested_too_deeply(value: Any) -> bool:
    level = [value]
    for _ in range(MAX_DEPTH):
        level = [
            child for item in level if isinstance(item, dict | list) for child in _holders_in(item)
        ]
        if not level:
            return False
    return True


def _holders_in(item: dict[str, Any] | list[Any]) -> Iterable[Any]:
    children = item.values() if isinstance(item, dict) else item
    # A prompt's thousands of token ids are not looked at one by one.
    if not set(map(type, children)) & _HOLDERS:
        return ()
    return (child for child in children if type(child) in _HOLDERS)


def _separators(body: bytes, begin: int, end: int) -> int:
    return sum(
        body.count(letter, at, min(at + _SLICE, end))
        for at in range(begin, end, _SLICE)
        for letter in (b",", b"[", b"{")
    )


def _string_end(body: bytes, position: int) -> int:
    """Behind the quote that ends a string whose text begins at `position`."""
    while True:
        quote = body.find(_QUOTE, position)
        if quote < 0:
            return len(body)
        before = body[position:quote]
        escapes = len(before) - len(before.rstrip(_BACKSLASH))
        position = quote + 1
        if escapes % 2 == 0:
            return position
