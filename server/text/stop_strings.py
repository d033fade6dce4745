"""Ends an answer's text at the first of the client's stop strings, whatever the token borders.

Owns the text that is held back because a stop string could begin in it. One answer, one thread.
Invariant: the text given out never holds a stop string, nor any part of the one that ended the
answer; where that one is kept, it is the text's end.
"""

from collections.abc import Iterable, Sequence


class StopStrings:
    """any: whether there are any to look for. found: the stop string that has come, after which
    every piece is empty; None: none has."""

    def __init__(self, stops: Sequence[str], *, is_kept: bool = False) -> None:
        """stops: not empty strings. is_kept: the one that ends the answer is part of its text."""
        self._stops = tuple(stops)
        self.any = bool(stops)
        self._is_kept = is_kept
        self._held = ""
        self.found: str | None = None

    def push(self, text: str) -> str:
        """Take the next piece of text; returns the text that no stop string can end any more."""
        if not self._stops:
            return text
        if self.found:
            return ""
        text = self._held + text
        # Of two that begin at one place the shorter came first.
        found = [
            (start, len(stop), stop) for stop in self._stops if (start := text.find(stop)) >= 0
        ]
        if found:
            start, length, self.found = min(found)
            self._held = ""
            return text[: start + length if self._is_kept else start]
        certain = len(text) - held_back(text, self._stops)
        self._held = text[certain:]
        return text[:certain]

    def finish(self) -> str:
        """The text held back, after the last piece."""
        rest, self._held = self._held, ""
        return rest


def held_back(text: str, markers: Iterable[str]) -> int:
    """Characters at the end of `text` that could be the beginning of a marker."""
    longest = 0
    for marker in markers:
        for length in range(min(len(marker) - 1, len(text)), longest, -1):
            if text.endswith(marker[:length]):
                longest = length
                break
    return longest
