"""Types of entries: ways in for a caller's or a model's text, run by a test of growth.

An entry is fed a growing input of several shapes, as a whole or one token a push. This module has
value types only. The entries themselves are in answers.py, bodies.py and readers.py.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias

from .measure import Prepare, Run
from .shapes import TEXTS, Shape
from .walk import Place

MOST_BODY = 32 << 20
"""Largest body or message taken by a node, in bytes."""
MOST_ANSWER = 1 << 20
"""Characters of an answer long enough to fill the context of a model of 262,144 tokens."""
TOKEN_CHARACTERS = 3
"""Characters of a token here. It divides no tag's length, so tags are split at each of their
letters."""

Input: TypeAlias = Callable[[int], Any]
"""Maker of an input of about a given size in characters."""


class Entry(Protocol):
    """One way in for text. functions: places of the functions tested by it. most: the largest size
    allowed."""

    name: str
    functions: tuple[Place, ...]
    most: int

    @property
    def shapes(self) -> Mapping[str, Input]: ...

    def prepare(self, shape: str) -> Prepare: ...


@dataclass(frozen=True)
class Whole:
    """An entry with its whole input read at once."""

    name: str
    functions: tuple[Place, ...]
    shapes: Mapping[str, Input]
    read: Callable[[Any], object]
    most: int = MOST_BODY

    def prepare(self, shape: str) -> Prepare:
        make = self.shapes[shape]

        def of_size(size: int) -> Run:
            made = make(size)
            return lambda: self.read(made)

        return of_size


@dataclass(frozen=True)
class Reader:
    """A reader of one answer. push: takes the next token's text. finish: called after the last
    token."""

    push: Callable[[str], object]
    finish: Callable[[], object]


@dataclass(frozen=True)
class Answer:
    """An entry fed one token a push, on an event loop."""

    name: str
    functions: tuple[Place, ...]
    begin: Callable[[], Reader]
    shapes: Mapping[str, Shape] = field(default_factory=lambda: TEXTS)
    most: int = MOST_ANSWER

    def prepare(self, shape: str) -> Prepare:
        make = self.shapes[shape]

        def of_size(size: int) -> Run:
            pieces = tokens_of(make(size))

            def run() -> object:
                reader = self.begin()
                push = reader.push
                for piece in pieces:
                    push(piece)
                return reader.finish()

            return run

        return of_size

    def longest_push(self, shape: str, size: int) -> float:
        """Return the time of the longest push, in seconds of this thread's processor time."""
        reader = self.begin()
        longest = 0.0
        for piece in tokens_of(self.shapes[shape](size)):
            began = time.thread_time()
            reader.push(piece)
            longest = max(longest, time.thread_time() - began)
        return longest


def tokens_of(text: str) -> list[str]:
    return [text[at : at + TOKEN_CHARACTERS] for at in range(0, len(text), TOKEN_CHARACTERS)]


def some(*names: str) -> dict[str, Shape]:
    return {name: TEXTS[name] for name in names}


@dataclass(frozen=True)
class Case:
    """One shape of one entry."""

    entry: Entry
    shape: str

    @property
    def id(self) -> str:
        return f"{self.entry.name} - {self.shape}"

    @property
    def prepare(self) -> Prepare:
        return self.entry.prepare(self.shape)


def cases_of(entries: list[Entry]) -> Iterator[Case]:
    for entry in entries:
        for shape in entry.shapes:
            yield Case(entry, shape)
