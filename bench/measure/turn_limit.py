"""How many drafts a step has while a bench takes turns: none, a fixed number, or as many as a node
finds worth their time.

Owns what such a node knows, which learns from its own turns and from those without drafts. Thread
rule: the engine loop's.
"""

from collections.abc import Collection, Sequence
from enum import Enum

from tasuki.engine.speculation.draft_limit import DraftLimit
from tasuki.engine.speculation.drafting import Drafting
from tasuki.engine.speculation.step_costs import StepShape


class Turn(Enum):
    OFF = "off"
    MOST = "most"
    MEASURED = "measured"


class TurnLimit:
    def __init__(self, most: int, measured: DraftLimit) -> None:
        """measured: that a node would have."""
        self._most = most
        self._measured = measured
        self.turn = Turn.OFF
        self.drafts: list[int] = []
        """Of each measured step, of an answer at most."""

    @property
    def watched(self) -> int:
        return self._measured.watched if self.turn is Turn.MEASURED else 0

    def next(self, answers: int, drafting: Collection[Drafting]) -> int:
        if self.turn is Turn.MEASURED:
            return self._measured.next(answers, drafting)
        return 0 if self.turn is Turn.OFF else self._most

    def of_step(self, answers: int, proposed: Sequence[tuple[Drafting, int]]) -> int:
        if self.turn is Turn.MEASURED:
            return self._measured.of_step(answers, proposed)
        return self._most

    def landed(self, shape: StepShape, tokens: int, seconds: float, *, planned: bool) -> None:
        # What drafts lose that it did not choose is no loss of its own.
        if self.turn is Turn.MEASURED or (self.turn is Turn.OFF and not shape.drafted):
            self._measured.landed(shape, tokens, seconds, planned=planned)
        if self.turn is Turn.MEASURED:
            self.drafts.append(shape.tokens - 1 if shape.drafted else 0)
