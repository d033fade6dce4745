"""How many drafts the answers of the next step may have: the protocol, and a limit that stays.

A limit decides how long steps take, never which tokens come of them: see drafter.py.
"""

from collections.abc import Collection
from typing import Protocol

from .drafting import Drafting


class DraftLimit(Protocol):
    """Thread rule: the engine loop's."""

    def next(self, answers: int, drafting: Collection[Drafting]) -> int:
        """Drafts of each answer of the next step at most; 0: it is planned while the one before
        runs, as if nobody drafted. answers: that run. drafting: of those of them that may be
        drafted, at least one."""


class FixedLimit:
    """As many as there are, up to a number, whatever they cost."""

    def __init__(self, most: int) -> None:
        self._most = most

    def next(self, answers: int, drafting: Collection[Drafting]) -> int:
        return self._most
