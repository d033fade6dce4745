"""Reads the arguments of a tool call as the object that their text stands for.

Pure functions; any thread. Invariants: every text is read as an object, since a call that was cut
off by the answer's length would else end its conversation for good. What was cut off is closed
where it ends, so that it is rendered as far as it was written. The cost is linear in the text: it
is scanned once, and parsed at most 5 times.
"""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from .json_bounds import MAX_DEPTH, nested_too_deeply

_CLOSING = {"{": "}", "[": "]"}
# Begins the escape of every half of a character.
_HALF = "\\ud"
# The next letter that has a meaning outside of strings: a quote is one whose string does not end.
# Without a letter the match ends at the text's end, or where other threads may run.
_SIGN = re.compile(
    r'(?:[^"{}\[\],]++|"[^"\\]*+(?:\\.[^"\\]*+)*+"){0,4096}+(["{}\[\],]?)', re.DOTALL
)
UNREAD = "arguments"
"""The one key of arguments that are no object's text, whose value they are."""


def read_arguments(text: str) -> Mapping[str, Any]:
    """Return the object that the text of a call's arguments stands for; without text an empty one.

    Text that is no object's, or nests deeper than MAX_DEPTH, is the value of UNREAD."""
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
    """Return the object of a text that was not cut off; an empty one for all other text, and for an
    object that nests deeper than MAX_DEPTH."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    if not isinstance(value, dict) or nested_too_deeply(value):
        return {}
    return _whole_characters(value) if _HALF in text.lower() else value


def _readings(text: str) -> Iterator[str]:
    """Yield the text itself, then the texts that it may be if the answer's end cut it off."""
    yield text
    yield from _closed(text)


def _whole_characters(value: dict[str, Any]) -> dict[str, Any]:
    """Put U+FFFD for each half of a character, which no tokenizer could encode."""
    text = json.dumps(value, ensure_ascii=False).encode("utf-16-le", "surrogatepass")
    whole: dict[str, Any] = json.loads(text.decode("utf-16-le", "replace"))
    return whole


def _closed(text: str) -> Iterator[str]:
    """Yield the text closed where it ends, then closed where its last whole value ends.

    Yields none where the brackets do not match, or nest deeper than MAX_DEPTH."""
    closing: list[str] = []
    # The last place at which the text could be closed.
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
    # Behind the last place no bracket came: both are closed by the same letters.
    end = "".join(reversed(closing))
    if in_string:
        yield from (f'{cut}"{end}' for cut in _without_escape(text))
    else:
        yield text + end
    yield text[:whole] + end


def _without_escape(text: str) -> Iterator[str]:
    """Yield the text, then the text without an escape that its end may have torn: at most 5
    letters, a backslash first."""
    yield text
    torn = text.rfind("\\", max(len(text) - 5, 0))
    if torn >= 0:
        yield text[:torn]
        yield text[: torn - 1]
