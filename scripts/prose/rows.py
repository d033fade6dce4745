"""Measures of plain English (rows a to f), counted over texts of one kind.

Each row has a bound in `bounds.toml`. `words.toml` has the lists of words.

Pure functions, without I/O beyond these lists.
"""

import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from .sentences import CODE, Sentence, sentences
from .texts import Kind, Text

MOST_WORDS = 25
MOST_HELP = 120
"""Largest number of characters of a help text."""
MOST_SUBJECT = 72
"""Largest number of characters of a commit's subject."""
_LISTS: dict[str, list[str]] = {
    name: words.split()
    for name, words in tomllib.loads(Path(__file__).with_name("words.toml").read_text()).items()
}
RELATIVES = frozenset(_LISTS["relatives"])
OPENINGS = frozenset(_LISTS["openings"])
_AUXILIARIES = frozenset(_LISTS["auxiliaries"])
_BEFORE_NOUNS = frozenset(_LISTS["before_nouns"])


@dataclass(frozen=True)
class Found:
    """One breach of plain English. row: letter of the broken row. place: its file and line. text:
    the words in question."""

    row: str
    place: str
    text: str


@dataclass(frozen=True)
class Row:
    """A measured row: `count` breaches among `total`. Its value is their ratio times `scale`, 100
    for percent and for words a hundred."""

    count: int
    total: int
    scale: int

    @property
    def value(self) -> float:
        return self.scale * self.count / self.total if self.total else 0.0


@dataclass(frozen=True)
class Measured:
    """The measures of one kind of text. words: number of its words. rows: by letter. breaches: each
    breach."""

    kind: Kind
    words: int
    rows: Mapping[str, Row]
    breaches: tuple[Found, ...]


def measured(kind: Kind, texts: Iterable[Text]) -> Measured:
    """Count the rows (a) to (f) of plain English over the texts of one kind."""
    texts = list(texts)
    found = [(text, sentence) for text in texts for sentence in sentences(text.text)]
    words = sum(len(sentence.words) for _, sentence in found)
    breaches = [
        *(
            Found("a", text.place, sentence.text)
            for text, sentence in found
            for word in sentence.words
            if word.lower() in RELATIVES
        ),
        *_breaches("b", found, lambda at: at.words[0].lower() in OPENINGS),
        *_breaches("c", found, _lacks_verb(kind)),
        *_breaches("d", found, lambda at: len(at.words) > MOST_WORDS),
    ]
    rows = {
        "a": Row(_count(breaches, "a"), words, 100),
        **{row: Row(_count(breaches, row), len(found), 100) for row in "bcd"},
    }
    for row, kept, most in (("e", Kind.HELP, MOST_HELP), ("f", Kind.SUBJECTS, MOST_SUBJECT)):
        if kind is kept:
            long = [Found(row, at.place, at.text) for at in texts if len(at.text) > most]
            breaches += long
            # Row (e) is a count of help texts, row (f) a share of subjects.
            rows[row] = Row(len(long), 1 if row == "e" else len(texts), 1 if row == "e" else 100)
    return Measured(kind, words, rows, tuple(breaches))


def _breaches(
    row: str, found: Iterable[tuple[Text, Sentence]], is_one: Callable[[Sentence], bool]
) -> list[Found]:
    return [Found(row, text.place, at.text) for text, at in found if is_one(at)]


def _count(breaches: Iterable[Found], row: str) -> int:
    return sum(found.row == row for found in breaches)


def _lacks_verb(kind: Kind) -> Callable[[Sentence], bool]:
    """Return the function deciding if a sentence lacks a verb, for one kind of text. A noun phrase
    may start a docstring, be a whole help text, a comment at a line's end, or follow a label.
    Headings and cells are not sentences."""

    def lacks(at: Sentence) -> bool:
        if at.is_fragment or (kind in _NOUNS_FIRST and at.is_first):
            return False
        return not has_verb(at.words)

    return lacks


_NOUNS_FIRST = frozenset({Kind.DOCSTRINGS, Kind.HELP, Kind.COMMENTS})


def has_verb(words: tuple[str, ...]) -> bool:
    """Return True if one of the words is a verb: an auxiliary or a form of a listed verb.

    A form with a second meaning as a noun counts unless an article, a number or a preposition
    precedes it. A sentence's first word counts in its base form only.
    """
    verbs, nouns = _verbs()
    before = ""
    for word in map(str.lower, words):
        if word in _AUXILIARIES:
            return True
        if word in verbs:
            is_noun = before in _BEFORE_NOUNS if before else word.endswith("s")
            if word not in nouns or not is_noun:
                return True
        before = word
    return words == (CODE,)


@cache
def _verbs() -> tuple[frozenset[str], frozenset[str]]:
    """Return all forms of the listed verbs, and the forms also usable as nouns."""
    verbs, nouns = set[str](), set[str]()
    for entry in _LISTS["verbs"]:
        name, *past = entry.replace("*", "").split("/")
        forms = {name, _third_person(name), *(past or [_past(name)])}
        verbs |= forms
        if "*" in entry:
            nouns |= {name, _third_person(name)}
    return frozenset(verbs), frozenset(nouns)


def _third_person(verb: str) -> str:
    if verb.endswith(("s", "x", "z", "ch", "sh", "o")):
        return f"{verb}es"
    return f"{verb[:-1]}ies" if _ends_in_consonant_y(verb) else f"{verb}s"


def _past(verb: str) -> str:
    if verb.endswith("e"):
        return f"{verb}d"
    return f"{verb[:-1]}ied" if _ends_in_consonant_y(verb) else f"{verb}ed"


def _ends_in_consonant_y(verb: str) -> bool:
    return verb.endswith("y") and verb[-2:-1] not in "aeiou"
