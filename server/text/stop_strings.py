"""Ends an answer's text at the first of the client's stop strings, whatever the token borders.

The first is the one that ends first, and of those that end there the longest.

Owns the text that is held back because a stop string could begin in it. One answer, one thread.
Invariants: the text given out never holds a stop string, nor any part of the one that ended the
answer; where that one is kept, it is the text's end. A letter is looked at once.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum

from .stop_automaton import START, StopAutomaton


class StopPlace(Enum):
    """Where stop strings are looked for in an answer that is taken apart. ANSWER: in its content.
    EVERYWHERE: in all that the model writes."""

    ANSWER = "answer"
    EVERYWHERE = "everywhere"


@dataclass(frozen=True)
class StopRule:
    """The stop strings that a request asks for. is_kept: as of StopStrings. min_tokens: in the text
    of so many tokens none is looked for."""

    strings: tuple[str, ...] = ()
    is_kept: bool = False
    min_tokens: int = 0

    def scanner(self) -> "StopStrings":
        """Return a fresh one."""
        return StopStrings(self.strings, is_kept=self.is_kept)


NO_STOPS = StopRule()


class StopStrings:
    """The scanner of one answer's text. any: whether there are any to look for. found: the stop
    string that has come, after which every piece is empty; None: none has. is_kept: as given."""

    def __init__(self, stops: Sequence[str], *, is_kept: bool = False) -> None:
        """stops: not empty strings. is_kept: the one that ends the answer is part of its text."""
        self.any = bool(stops)
        self.is_kept = is_kept
        self._stops = tuple(stops)
        self._first_letters = frozenset(stop[0] for stop in stops)
        # Built at the first letter that may begin a stop string: most answers hold none.
        self._automaton: StopAutomaton | None = None
        self._state = START
        self._held = ""
        self.found: str | None = None

    def push(self, text: str) -> str:
        """Take the next piece of text; return the text that no stop string can end any more."""
        if self._state == START and self._first_letters.isdisjoint(text):
            return "" if self.found else text
        if self.found:
            return ""
        if self._automaton is None:
            self._automaton = StopAutomaton(self._stops)
        self._state, match = self._automaton.scan(self._state, text)
        whole = self._held + text
        if match is not None:
            start = len(self._held) + match.start
            end = start + match.length
            self.found, self._held = whole[start:end], ""
            return whole[: end if self.is_kept else start]
        certain = len(whole) - self._automaton.depth(self._state)
        self._held = whole[certain:]
        return whole[:certain]

    @property
    def held(self) -> int:
        """How many letters are held back."""
        return len(self._held)

    def finish(self) -> str:
        """Return the text held back, after the last piece. No stop string reaches over this
        place."""
        rest, self._held, self._state = self._held, "", START
        return rest


def held_back(text: str, markers: Iterable[str]) -> int:
    """Return how many characters at the end of `text` could be the beginning of a marker.

    For markers as short as a tag: the cost is that of their lengths, not of the text's."""
    longest = 0
    for marker in markers:
        at = text.find(marker[0], max(len(text) - len(marker) + 1, 0))
        while at >= 0:
            if marker.startswith(text[at:]):
                longest = max(longest, len(text) - at)
                break
            at = text.find(marker[0], at + 1)
    return longest
