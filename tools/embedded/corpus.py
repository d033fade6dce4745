"""The training text of the embedded model: Austen's six novels as chapters of clean text, read from
Debian's r-cran-janeaustenr package.

Owns the way from the .deb (ar > tar > R lazy-load records > character vectors) to unwrapped
paragraphs, the cut into sentences, and the choice of held-out chapters. Knows nothing of tokens.
Pure functions of the file: the same package gives the same corpus.
"""

import hashlib
import io
import re
import struct
import tarfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

_RECORDS = "./usr/lib/R/site-library/janeaustenr/data/Rdata.rdb"
_STRING_VECTOR = 0x10
_CHARACTERS = 0x09
_HEADING = re.compile(r"^(chapter [ivxlc\d]+|volume [ivx\d]+)\b.{0,12}$", re.IGNORECASE)
_CLOSING = re.compile(r"^(the end|finis)\b", re.IGNORECASE)
_ABBREVIATION = re.compile(r"(?:^|[\s(\"'-])(?:Mr|Mrs|Messrs|Dr|St|Esq|[A-Z])\.$")
_SENTENCE_END = re.compile(r"(?:[.!?][\"')]*)(?=\s)")
_HELD_OUT_EVERY = 20


class CorpusError(ValueError):
    """The Debian package does not hold the expected data; the message names the data and the
    place."""


@dataclass(frozen=True)
class Chapter:
    """One chapter. `text`: its paragraphs joined by blank lines, without the heading. `number`: its
    place within `novel`, from 0."""

    novel: str
    number: int
    text: str


@dataclass(frozen=True)
class Corpus:
    """All chapters. Every twentieth is held out for validation, so each novel is in both parts."""

    train: tuple[Chapter, ...]
    held_out: tuple[Chapter, ...]

    @property
    def sha256(self) -> str:
        """Return the digest of all chapters' UTF-8 text in reading order, training first."""
        digest = hashlib.sha256()
        for chapter in self.train + self.held_out:
            digest.update(chapter.text.encode() + b"\0")
        return digest.hexdigest()


def load_corpus(package: Path) -> Corpus:
    """Read the six novels from the .deb. Raises CorpusError."""
    chapters = [chapter for lines in _novels(package) for chapter in _chapters(lines)]
    held_out = range(_HELD_OUT_EVERY // 2, len(chapters), _HELD_OUT_EVERY)
    return Corpus(
        train=tuple(c for index, c in enumerate(chapters) if index not in held_out),
        held_out=tuple(chapters[index] for index in held_out),
    )


def sentences(text: str) -> list[str]:
    """Return `text` cut after sentence ends. Each piece keeps the white space before it, so joining
    the pieces gives `text` back."""
    cuts = [0]
    for match in _SENTENCE_END.finditer(text):
        following = text[match.end() :].lstrip(" \n\"'(")[:1]
        abbreviated = _ABBREVIATION.search(text[cuts[-1] : match.end()])
        if following and not following.islower() and not abbreviated:
            cuts.append(match.end())
    cuts.append(len(text))
    return [text[a:b] for a, b in pairwise(cuts) if a < b]


def _novels(package: Path) -> Iterator[list[str]]:
    """Yield the text lines of each novel, in the order of the lazy-load file. A record there is a
    length and a zlib stream."""
    records = _member(package)
    while records:
        inflater = zlib.decompressobj()
        yield _string_vector(inflater.decompress(records[4:]), package)
        records = inflater.unused_data


def _member(package: Path) -> bytes:
    """Return the bytes of the lazy-load file inside data.tar.* inside the .deb's ar archive. Raises
    CorpusError."""
    raw = package.read_bytes()
    if not raw.startswith(b"!<arch>\n"):
        raise CorpusError(f"{package}: is no Debian package; download r-cran-janeaustenr again")
    at = 8
    while at + 60 <= len(raw):
        name, size = raw[at : at + 16].decode().strip(), int(raw[at + 48 : at + 58])
        if name.startswith("data.tar"):
            with tarfile.open(fileobj=io.BytesIO(raw[at + 60 : at + 60 + size])) as archive:
                file = archive.extractfile(_RECORDS)
                if file is not None:
                    return file.read()
        at += 60 + size + size % 2
    raise CorpusError(f"{package}: holds no {_RECORDS}; use r-cran-janeaustenr 1.0.0")


def _string_vector(record: bytes, package: Path) -> list[str]:
    """Parse one R serialisation (XDR, version 3) of a plain character vector. Raises
    CorpusError."""
    encoding_length = struct.unpack_from(">i", record, 14)[0]
    at = 18 + encoding_length
    kind, count = struct.unpack_from(">ii", record, at)
    if not record.startswith(b"X\n") or kind & 0xFF != _STRING_VECTOR:
        raise CorpusError(f"{package}: a record is no character vector; use version 1.0.0")
    at += 8
    lines = []
    for _ in range(count):
        flags, length = struct.unpack_from(">ii", record, at)
        if flags & 0xFF != _CHARACTERS:
            raise CorpusError(f"{package}: a line is no string; use version 1.0.0")
        lines.append(record[at + 8 : at + 8 + max(length, 0)].decode("utf-8"))
        at += 8 + max(length, 0)
    return lines


def _chapters(lines: list[str]) -> Iterator[Chapter]:
    """Unwrap lines into paragraphs and cut at headings. Text before the first heading is
    dropped."""
    novel = lines[0].strip().title()
    number = 0
    paragraphs: list[str] = []
    started = False
    for block in re.split(r"\n\s*\n", "\n".join(lines)):
        paragraph = " ".join(block.replace("_", "").split())
        if _HEADING.match(paragraph):
            if paragraphs:
                yield Chapter(novel, number, "\n\n".join(paragraphs))
                number += 1
            paragraphs, started = [], True
        elif started and paragraph and not _CLOSING.match(paragraph):
            paragraphs.append(paragraph)
    if paragraphs:
        yield Chapter(novel, number, "\n\n".join(paragraphs))
