"""A mutant: one small wrong change of one place in the source. Also its possible verdicts.

Pure. Invariant: a key names a symbol, an operator, and the count of the operator's earlier uses in
the symbol. So it stays valid while the symbol's text does, in any file.
"""

import hashlib
from collections import Counter
from dataclasses import dataclass
from enum import Enum


@dataclass(frozen=True)
class Edit:
    """A change: bytes [start, end) of a file become `text`. symbol: name of the changed function.
    operator: name of the change. scope: the function's whole source."""

    symbol: str
    operator: str
    start: int
    end: int
    text: str
    scope: str

    def applied(self, source: bytes) -> bytes:
        return source[: self.start] + self.text.encode() + source[self.end :]

    def shown(self, source: bytes) -> str:
        before = _short(source[self.start : self.end].decode())
        return f"{before} -> {_short(self.text) or 'nothing'}"


@dataclass(frozen=True)
class Mutant:
    key: str
    edit: Edit

    @property
    def scope_digest(self) -> str:
        """Return a digest of the changed function's current text, because verdicts hold for this
        text only."""
        return hashlib.sha256(self.edit.scope.encode()).hexdigest()[:16]


class Status(Enum):
    CAUGHT = "caught"
    TIMEOUT = "timeout"
    """The tests did not end: the mutant counts as caught, but is slow."""
    SURVIVED = "survived"
    EQUIVALENT = "equivalent"
    """The mutant survived, and equivalents.toml explains why no test could notice it."""
    INVALID = "invalid"
    """The changed source does not compile, so it is not a mutant."""


def numbered(edits: list[Edit]) -> list[Mutant]:
    """Return mutants with keys for the edits, in the order of the source."""
    seen: Counter[tuple[str, str]] = Counter()
    mutants = []
    for edit in sorted(edits, key=lambda edit: (edit.start, edit.end, edit.operator)):
        kind = edit.symbol, edit.operator
        mutants.append(Mutant(f"{edit.symbol} {edit.operator} {seen[kind]}", edit))
        seen[kind] += 1
    return mutants


def _short(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= 60 else f"{text[:57]}..."
