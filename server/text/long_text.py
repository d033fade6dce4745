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
    position = 0
    for begin in range(0, len(text), slice_characters):
        end = begin + slice_characters
        for found in pattern.finditer(text, max(begin, position), end + longest - 1):
            if found.start() >= end:
                break
            yield found
            position = found.end()
