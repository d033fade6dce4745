"""Splits a text into sentences of plain words.

Code, addresses and markup become one word or nothing, so that only English is measured.

Pure functions, without I/O.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

_FENCE = re.compile(r"^ *(```|~~~).*?^ *\1[^\n]*$", re.MULTILINE | re.DOTALL)
_HTML = re.compile(r"<!--.*?-->|<[^<>\n]+>", re.DOTALL)
_IMAGE = re.compile(r"!\[[^\]]*\]\([^)]*\)")
_LINK = re.compile(r"\[([^\]]*)\](?:\([^)]*\)|\[[^\]]*\])")
_ADDRESS = re.compile(r"\bhttps?://\S+")
_CODE = re.compile(r"(`+)(?:(?!\1).)+\1", re.DOTALL)
_EMPHASIS = re.compile(r"(?<!\w)[*_]{1,3}(?=\S)|(?<=\S)[*_]{1,3}(?!\w)")
_ABBREVIATION = re.compile(r"\b(e\.g|i\.e|etc|vs|cf|no|approx)\.", re.IGNORECASE)
_END = re.compile(r"(?<=[.!?])[\"')]*\s+")
_WORD = re.compile(r"[A-Za-z][A-Za-z'-]*")
_HEADING = re.compile(r"^ {0,3}#{1,6} ")
_ITEM = re.compile(r"^ *(?:[-*+]|\d+[.)]) +")
_LABEL = re.compile(r"^[`\w][^.!?:]{0,60}: ")
_UNDERLINE = re.compile(r"^ *[|:\-\s=]+$")
CODE = "Identifier"
"""The word that takes the place of a code span."""


@dataclass(frozen=True)
class Sentence:
    """words: in order, without punctuation. is_fragment: a heading, a cell of a table or a labelled
    item, none of them bound to have a verb. is_first: the text's first sentence."""

    text: str
    words: tuple[str, ...]
    is_fragment: bool
    is_first: bool


def sentences(text: str) -> Iterator[Sentence]:
    """The sentences of a text in Markdown or of a docstring; those without a word are left out."""
    first = True
    for block, is_fragment in _blocks(_plain(text)):
        for found in _END.split(_ABBREVIATION.sub(r"\1", block)):
            words = tuple(_WORD.findall(found))
            if words:
                labelled = bool(_LABEL.match(found))
                yield Sentence(" ".join(found.split()), words, is_fragment or labelled, first)
                first = False


def _plain(text: str) -> str:
    """The text without code blocks, links' targets, emphasis and HTML."""
    text = _FENCE.sub("\n\n", text)
    text = _IMAGE.sub("", text)
    text = _CODE.sub(CODE, text)
    text = _LINK.sub(r"\1", text)
    text = _ADDRESS.sub(CODE, text)
    text = _HTML.sub(" ", text)
    return _EMPHASIS.sub("", text)


def _blocks(text: str) -> Iterator[tuple[str, bool]]:
    """Paragraphs, items, headings and cells, each with whether it is a fragment."""
    lines: list[str] = []
    for line in [*text.splitlines(), ""]:
        is_row = line.lstrip().startswith("|")
        if not line.strip() or is_row or _HEADING.match(line) or _ITEM.match(line):
            if lines:
                yield " ".join(lines), False
            lines = []
        if is_row:
            cells = [] if _UNDERLINE.match(line) else line.strip().strip("|").split("|")
            yield from ((cell.strip(), True) for cell in cells)
        elif _HEADING.match(line):
            yield _HEADING.sub("", line).strip(), True
        elif line.strip():
            lines.append(_ITEM.sub("", line).strip())
