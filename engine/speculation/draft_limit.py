"""How many drafts the answers of the next step may have: the protocol, and a limit that stays.

A limit decides how long steps take, never which tokens come of them: see drafter.py.
"""

from collections.abc import Collection, Sequence
from typing import Protocol

from .drafting import Drafting
from .step_costs import StepShape


class DraftLimit(Protocol):
    """Thread rule: the engine loop's."""

    @property
    def watched(self) -> int:
        """Answers whose drafters are to be watched beside the next step if it has no drafts."""

    def next(self, answers: int, drafting: Collection[Drafting]) -> int:
        """Drafts of each answer of the next step at most; 0: it is planned while the one before
        runs, as if nobody drafted. answers: that run. drafting: of those of them that may be
        drafted, at least one."""

    def of_step(self, answers: int, proposed: Sequence[tuple[Drafting, int]]) -> int:
        """Now that drafts were proposed, so many of each, how many of them are computed at most.
        answers: that the step has, these included."""

    def landed(self, shape: StepShape, tokens: int, seconds: float, *, planned: bool) -> None:
        """A step of nothing but answers, which gave so many tokens, ended so long after the one
        right before it. planned: while that one ran."""


class FixedLimit:
    """As many as there are, up to a number, whatever they cost."""

    def __init__(self, most: int) -> None:
        self.most = most

    @property
    def watched(self) -> int:
        return 0

    def next(self, answers: int, drafting: Collection[Drafting]) -> int:
        return self.most

    def of_step(self, answers: int, proposed: Sequence[tuple[Drafting, int]]) -> int:
        return self.most

    def landed(self, shape: StepShape, tokens: int, seconds: float, *, planned: bool) -> None:
        """It changes nothing."""
