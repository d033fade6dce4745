"""The project's English keeps to the bounds of `scripts/prose/bounds.toml`, kind by kind."""

import tomllib
from pathlib import Path

import pytest

from scripts.prose.rows import Measured, has_verb, measured
from scripts.prose.sentences import sentences
from scripts.prose.texts import ROOT, Kind, Text, texts

BOUNDS = tomllib.loads((ROOT / "scripts/prose/bounds.toml").read_text(encoding="utf-8"))
SHOWN = 20
"""Number of breaches printed by a failure."""


def rows_of(text: str, kind: Kind = Kind.DOCS) -> dict[str, int]:
    return {row: at.count for row, at in measured(kind, [Text("here", text)]).rows.items()}


@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", list(Kind))
def test_each_kind_keeps_to_its_bounds(kind: Kind) -> None:
    found = measured(kind, texts(kind))
    bounds = dict(BOUNDS[kind])
    most_words = bounds.pop("words", None)
    broken = [row for row, bound in bounds.items() if found.rows[row].value > bound]
    assert found.words > 0 and not broken, "\n".join(_shown(found, broken))
    assert most_words is None or found.words <= most_words


def _shown(found: Measured, broken: list[str]) -> list[str]:
    values = [f"({row}) {found.rows[row].value:.2f} > {BOUNDS[found.kind][row]}" for row in broken]
    breaches = [f"{at.place}: {at.text}" for at in found.breaches if at.row in broken]
    return [*values, *breaches[-SHOWN:]]


@pytest.mark.parametrize(
    ("text", "counts"),
    [
        ("The node sends pages. It then waits.", {}),
        ("Whoever sends what it has, waits.", {"a": 2, "b": 1}),
        ("Of pages. The node waits.", {"b": 1, "c": 1}),
        (f"The node sends {'many ' * 21}pages.", {}),
        (f"The node sends {'many ' * 22}pages.", {"d": 1}),
        ("`which` and [what](who.md) <!-- whom -->\n\n```\nwhere\n```\n", {"a": 1, "c": 1}),
        ("# What a node has\n\n| where | who |\n| --- | --- |\n", {"a": 3, "b": 2}),
        ("- **pages**: number of 16-token pages", {}),
        ("- Pages of a node. Of two nodes.", {"b": 1, "c": 1}),
    ],
)
def test_breaches_are_counted_by_row(text: str, counts: dict[str, int]) -> None:
    assert rows_of(text) == dict.fromkeys("abcd", 0) | counts


def test_a_noun_phrase_may_head_a_docstring() -> None:
    text = "Bytes of a page. Of a slab."
    assert rows_of(text, Kind.DOCSTRINGS)["c"] == 1
    assert rows_of(text, Kind.ERRORS)["c"] == 2


@pytest.mark.parametrize(
    ("text", "verb"),
    [
        ("Return the page", True),
        ("the node steps back", True),
        ("a step of the node", False),
        ("pages in both stores", False),
        ("it kept them", True),
        ("no pages here", False),
    ],
)
def test_a_verb_is_told_from_a_noun(text: str, verb: bool) -> None:
    assert has_verb(tuple(text.split())) is verb


def test_long_help_and_long_subjects_are_counted() -> None:
    assert rows_of("x" * 121, Kind.HELP)["e"] == 1
    assert rows_of("x" * 120, Kind.HELP)["e"] == 0
    assert rows_of("x" * 73, Kind.SUBJECTS)["f"] == 1


def test_texts_have_their_places() -> None:
    places = {text.place for text in texts(Kind.DOCSTRINGS)}
    assert f"{Path(__file__).relative_to(ROOT)}:1" in places


def test_abbreviations_end_no_sentence() -> None:
    assert len(list(sentences("It sends pages, e.g. The first. It waits."))) == 2
