"""Splits a text into sentences of plain words.

Code, addresses and markup become one word or nothing, so only English is measured.

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
"""The word replacing a code span in a measured sentence."""


@dataclass(frozen=True)
class Sentence:
    """A sentence. words: its words in order, without punctuation. is_first: True for the text's
    first sentence.

    is_fragment: True for a heading, a cell of a table, a labelled phrase or a list item's first
    sentence. A fragment needs no verb.
    """

    text: str
    words: tuple[str, ...]
    is_fragment: bool
    is_first: bool


def sentences(text: str) -> Iterator[Sentence]:
    """Yield the sentences of a text in Markdown or of a docstring, except those without a word."""
    first = True
    for block in _blocks(_plain(text)):
        begins = True
        for found in _END.split(_ABBREVIATION.sub(r"\1", block.text)):
            words = tuple(_WORD.findall(found))
            if words:
                is_fragment = (
                    block.is_label or (block.is_item and begins) or bool(_LABEL.match(found))
                )
                yield Sentence(" ".join(found.split()), words, is_fragment, first)
                first = begins = False


def _plain(text: str) -> str:
    """Return the text without code blocks, links' targets, emphasis and HTML."""
    text = _FENCE.sub("\n\n", text)
    text = _IMAGE.sub("", text)
    text = _CODE.sub(CODE, text)
    text = _LINK.sub(r"\1", text)
    text = _ADDRESS.sub(CODE, text)
    text = _HTML.sub(" ", text)
    return _EMPHASIS.sub("", text)


@dataclass(frozen=True)
class _Block:
    """A block of a text: a paragraph, an item of a list, or a label (a heading or a cell of a
    table)."""

    text: str
    is_label: bool = False
    is_item: bool = False


def _blocks(text: str) -> Iterator[_Block]:
    lines: list[str] = []
    is_item = False
    for line in [*text.splitlines(), ""]:
        is_row = line.lstrip().startswith("|")
        if not line.strip() or is_row or _HEADING.match(line) or _ITEM.match(line):
            if lines:
                yield _Block(" ".join(lines), is_item=is_item)
            lines = []
            is_item = bool(_ITEM.match(line))
        if is_row:
            cells = [] if _UNDERLINE.match(line) else line.strip().strip("|").split("|")
            yield from (_Block(cell.strip(), is_label=True) for cell in cells)
        elif _HEADING.match(line):
            yield _Block(_HEADING.sub("", line).strip(), is_label=True)
        elif line.strip():
            lines.append(_ITEM.sub("", line).strip())
