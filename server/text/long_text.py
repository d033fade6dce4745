"""Regular expressions over texts of megabytes, a slice at a time.

`re` holds the interpreter's lock until one search or substitution ends. Between two slices other
threads, the event loop's above all, can run. Pure, any thread.
"""

import re
from collections.abc import Callable, Iterator

# A few milliseconds of a search for names.
_SLICE = 1 << 16


def matches(
    pattern: "re.Pattern[str]", text: str, longest: int, slice_characters: int = _SLICE
) -> Iterator["re.Match[str]"]:
    """As `pattern.finditer(text)`. REQUIRES: no match is empty or has more than `longest`
    characters, and none depends on what surrounds it."""
    position = begin = 0
    while begin < len(text):
        end = begin + slice_characters
        found = pattern.search(text, position, end + longest - 1)
        if found is None or found.start() >= end:
            position = begin = end
            continue
        yield found
        position = found.end()
        begin = max(begin, position)


def substituted(
    pattern: "re.Pattern[str]",
    replace: Callable[["re.Match[str]"], str],
    text: str,
    longest: int,
    slice_characters: int = _SLICE,
) -> str:
    """As `pattern.sub(replace, text)`, with what `matches` requires."""
    if len(text) <= slice_characters:
        return pattern.sub(replace, text)
    pieces = []
    position = 0
    for found in matches(pattern, text, longest, slice_characters):
        pieces += [text[position : found.start()], replace(found)]
        position = found.end()
    return "".join([*pieces, text[position:]])
