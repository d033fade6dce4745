"""Reads the arguments of a tool call that a client sends back, as the text that it was given.

Pure functions. Invariant: every text is read as an object, since a call that was cut off by the
answer's length would else end its conversation for good. What was cut off is closed where it ends,
so that it is rendered as far as it was written.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from .json_bounds import nested_too_deeply

_CLOSING = {"{": "}", "[": "]"}
# Begins the escape of every half of a character.
_HALF = "\\ud"
UNREAD = "arguments"
"""The one key of arguments that are no object's text, whose value they are."""


def read_arguments(text: str) -> Mapping[str, Any]:
    """text: at best a JSON object's. None at all is no arguments."""
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


def _readings(text: str) -> Iterator[str]:
    """The text itself, then, where that is no JSON, as if it had been closed."""
    yield text
    yield from _closed(text)


def _whole_characters(value: dict[str, Any]) -> dict[str, Any]:
    """With U+FFFD for each half of a character, which no tokenizer could encode."""
    text = json.dumps(value, ensure_ascii=False).encode("utf-16-le", "surrogatepass")
    whole: dict[str, Any] = json.loads(text.decode("utf-16-le", "replace"))
    return whole


def _closed(text: str) -> list[str]:
    """The text closed where it ends, and where its last whole value ends."""
    closing: list[str] = []
    # Where the text could be closed last, and by what.
    whole = (0, "")
    in_string = escaped = False
    for at, letter in enumerate(text):
        if in_string:
            if escaped:
                escaped = False
            elif letter == "\\":
                escaped = True
            elif letter == '"':
                in_string = False
            continue
        if letter == '"':
            in_string = True
        elif letter in _CLOSING:
            closing.append(_CLOSING[letter])
            whole = (at + 1, "".join(reversed(closing)))
        elif letter in "}]":
            if not closing or closing.pop() != letter:
                return []
            whole = (at + 1, "".join(reversed(closing)))
        elif letter == ",":
            whole = (at, "".join(reversed(closing)))
    end = "".join(reversed(closing))
    if in_string:
        return [*(f'{cut}"{end}' for cut in _without_escape(text)), text[: whole[0]] + whole[1]]
    return [text + end, text[: whole[0]] + whole[1]]


def _without_escape(text: str) -> list[str]:
    """The text, and the text without an escape that its end may have torn: of at most 5 letters, a
    backslash first."""
    torn = text.rfind("\\", len(text) - 5)
    return [text] if torn < 0 else [text, text[:torn], text[: torn - 1]]
