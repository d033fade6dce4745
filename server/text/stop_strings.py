"""Stop strings: an answer's text ends at the first one, independent of token borders.

The first stop string is the one with the earliest end. If several end at the same place, it is the
longest.

StopStrings owns the text held back because a stop string could begin in it. One answer, one thread.
Invariants: the returned text contains no stop string, nor any part of the one ending the answer. If
the request keeps the stop string, the text ends with it. Each character is read once.

StopAutomaton is an Aho-Corasick automaton over the stop strings of a request. One answer, one
thread, because an automaton computes failure links when the text first reaches a state. A state is
the longest suffix of the text equal to a prefix of a stop string. Invariants: building costs no
more than sorting the strings. A character costs the same for one short string and for many long
ones.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

START = 0
"""The automaton's state at the beginning of a text: no stop string has begun."""

# Letter of a state not reached from the previous state.
_NO_LETTER = ""


class StopPlace(Enum):
    """The part of an answer searched for stop strings. ANSWER: only its content, not reasoning or
    calls. EVERYWHERE: all text written by the model."""

    ANSWER = "answer"
    EVERYWHERE = "everywhere"


@dataclass(frozen=True)
class StopRule:
    """The stop strings of a request. is_kept: the answer's text includes the stop string ending it.
    min_tokens: number of first tokens with their text not searched."""

    strings: tuple[str, ...] = ()
    is_kept: bool = False
    min_tokens: int = 0

    def scanner(self) -> "StopStrings":
        """Return a new scanner for these stop strings."""
        return StopStrings(self.strings, is_kept=self.is_kept)


NO_STOPS = StopRule()


class StopStrings:
    """A scanner of one answer's text for stop strings. any: True if there are stop strings. found:
    the first complete stop string; None: none yet. After a found one, every returned text is empty.
    is_kept: the text includes the stop string ending it."""

    def __init__(self, stops: Sequence[str], *, is_kept: bool = False) -> None:
        """stops: stop strings, none of them empty. is_kept: the returned text includes the stop
        string ending it."""
        self.any = bool(stops)
        self.is_kept = is_kept
        self._stops = tuple(stops)
        self._first_letters = frozenset(stop[0] for stop in stops)
        # Built at the first letter of a possible stop string, because most answers have none.
        self._automaton: StopAutomaton | None = None
        self._state = START
        self._held = ""
        self.found: str | None = None

    def push(self, text: str) -> str:
        """Add the next segment of the answer's text. Return the text certain to lie outside every
        stop string. With is_kept, it includes the found one."""
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
        """Return the number of characters held back because a stop string may begin in them."""
        return len(self._held)

    def finish(self) -> str:
        """Return the text held back, at the end of the answer or of one of its parts. No stop
        string continues in later text."""
        rest, self._held, self._state = self._held, "", START
        return rest


def held_back(text: str, markers: Iterable[str]) -> int:
    """Return the number of characters at the end of `text` possibly beginning a marker. A whole
    marker does not count. For markers as short as a tag: the cost depends on their lengths, not on
    the text's."""
    longest = 0
    for marker in markers:
        at = text.find(marker[0], max(len(text) - len(marker) + 1, 0))
        while at >= 0:
            if marker.startswith(text[at:]):
                longest = max(longest, len(text) - at)
                break
            at = text.find(marker[0], at + 1)
    return longest


class Match(NamedTuple):
    """The position of a stop string in a segment of text. start: index of its first character;
    negative if the string began in an earlier segment. length: number of its characters."""

    start: int
    length: int


class _Branch(NamedTuple):
    """The automaton's states for the characters of one stop string after the prefix shared with the
    previous string in sorted order. origin: state before the branch. first: its first state. depth:
    length in characters of the prefix at its first state."""

    origin: int
    first: int
    depth: int


class StopAutomaton:
    def __init__(self, stops: Sequence[str]) -> None:
        """stops: at least one stop string, none of them empty."""
        self._branches: list[_Branch] = []
        # By state: the first state of each branch from it, by its letter.
        self._leaving: dict[int, dict[str, int]] = {}
        # By a branch's first state: the state before the branch.
        self._origins: dict[int, int] = {}
        # By state: the length of the longest stop string ending there.
        self._ends: dict[int, int] = {}
        # By state: its letter, after the previous state.
        self._letters = [_NO_LETTER]
        self._build(sorted(stops))
        # By state: the state of the same text without its first letters; None until it is learned.
        self._failures: list[int | None] = [START, *[None] * (len(self._letters) - 1)]

    def depth(self, state: int) -> int:
        """Return the number of characters at the text's end possibly beginning a stop string.
        state: the automaton's state after the text."""
        if state == START:
            return 0
        branch = self._branches[bisect_right(self._branches, state, key=_first_of) - 1]
        return branch.depth + state - branch.first

    def scan(self, state: int, text: str) -> tuple[int, Match | None]:
        """Continue from `state` over the next segment of text. Return the new state, and the stop
        string with the earliest end; None without one. If several end there, return the longest.
        The division of the text into segments does not change the result.

        After a match the state is meaningless. REQUIRES: earlier text had no match.
        """
        letters, failures, ends = self._letters, self._failures, self._ends
        for behind, letter in enumerate(text, 1):
            state = state + 1 if letters[state + 1] == letter else self._next(state, letter)
            if state == START:
                continue
            if failures[state] is None:
                self._learn(state)
            if state in ends:
                return state, Match(behind - ends[state], ends[state])
        return state, None

    def _build(self, stops: Sequence[str]) -> None:
        """Build the automaton's states. stops: stop strings in sorted order, so strings with a
        shared prefix are neighbours."""
        # The branches from the start to the end of the previous string.
        way: list[_Branch] = []
        last = ""
        for stop in stops:
            # A string with a listed prefix never ends a text, because the prefix ends it.
            if last and stop.startswith(last):
                continue
            shared = _shared(last, stop)
            while way and way[-1].depth > shared:
                way.pop()
            first = len(self._letters)
            origin = way[-1].first + shared - way[-1].depth if way else START
            way.append(_Branch(origin, first, shared + 1))
            self._branches.append(way[-1])
            self._leaving.setdefault(origin, {})[stop[shared]] = first
            self._origins[first] = origin
            self._letters += stop[shared:]
            self._ends[len(self._letters) - 1] = len(stop)
            self._letters.append(_NO_LETTER)
            last = stop

    def _next(self, state: int, letter: str) -> int:
        """Return the state after one more character. REQUIRES: the failure state of `state` is
        known."""
        while True:
            if self._letters[state + 1] == letter:
                return state + 1
            leaving = self._leaving.get(state)
            if leaving is not None and letter in leaving:
                return leaving[letter]
            if state == START:
                return START
            state = self._known(state)

    def _known(self, state: int) -> int:
        failure = self._failures[state]
        assert failure is not None
        return failure

    def _learn(self, state: int) -> None:
        """Find the failure state of a state, and of the states on its failure path. The failure
        state of a text is the state of its longest proper suffix beginning a stop string."""
        learned = []
        while self._failures[state] is None:
            origin = self._origins.get(state, state - 1)
            failure = START
            if origin != START:
                failure = self._next(self._known(origin), self._letters[state])
            self._failures[state] = failure
            learned.append(state)
            state = failure
        for state in reversed(learned):
            failure = self._known(state)
            if state not in self._ends and failure in self._ends:
                self._ends[state] = self._ends[failure]


def _shared(first: str, second: str) -> int:
    """Return the length of the two texts' common prefix."""
    lengths = range(1, min(len(first), len(second)) + 1)
    return bisect_left(lengths, True, key=lambda length: first[:length] != second[:length])


def _first_of(branch: _Branch) -> int:
    return branch.first
