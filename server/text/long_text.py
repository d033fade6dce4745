"""Searches by regular expressions over texts of megabytes, a slice at a time.

`re` holds the interpreter's lock until one search ends. Between two slices other
threads, the event loop's above all, can run. Pure, any thread.
"""

import re
from collections.abc import Iterator

# A few milliseconds of a search for names.
SLICE_CHARACTERS = 1 << 16


def matches(
    pattern: "re.Pattern[str]", text: str, longest: int, slice_characters: int = SLICE_CHARACTERS
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
