"""A node of answers with drafts whose steps take what a table says: no model, no clock."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count

import numpy as np

from tasuki.engine.speculation.draft_limit import DraftLimit
from tasuki.engine.speculation.drafting import Chances, Drafting, DraftSource
from tasuki.engine.speculation.step_costs import StepShape

Costs = Callable[[StepShape, int], float]
"""Seconds of a step of that shape, the so-many-th."""
Holds = Callable[[int], float]
"""How likely a draft of the answer's token of that number holds."""
_WAIT = 0.03
"""Of a step without drafts: what the host takes where it does not plan ahead."""
_NOISE = 0.02


class KnowingDrafter:
    """Proposes the answer, 0, 1, 2, ..., wrong from where a draft does not hold. silent: behind how
    many tokens it finds nothing."""

    source = DraftSource.TREE

    def __init__(self, holds: Holds, silent: Callable[[int], bool], draws: Iterator[float]) -> None:
        """draws: in [0, 1), evenly spread."""
        self._holds = holds
        self._silent = silent
        self._draws = draws

    def propose(self, output: Sequence[int], most: int) -> list[int]:
        first = len(output)
        if self._silent(first):
            return []
        drafts = list(range(first, first + most))
        reached, drawn = 1.0, next(self._draws)
        for place, token in enumerate(drafts):
            reached *= self._holds(token)
            if drawn >= reached:
                return drafts[:place] + [-1] * (most - place)
        return drafts

    def verified(self, drafted: int, accepted: int) -> None:
        return None


@dataclass
class DraftingNode:
    """answers: that run, all the time."""

    answers: int
    costs: Costs
    holds: Holds
    seed: int
    silent: Callable[[int], bool] = lambda token: False
    seconds: float = 0.0
    outputs: list[list[int]] = field(default_factory=list)
    chosen: list[int] = field(default_factory=list)
    """Most drafts of a row, step by step."""

    def __post_init__(self) -> None:
        self._chance = np.random.default_rng(self.seed)
        # Of the golden ratio's multiples as many fall anywhere, so that few steps show the mean.
        draws = ((self.seed + number * 0.6180339887) % 1 for number in count())
        together = Chances()
        self._drafting = [
            Drafting([KnowingDrafter(self.holds, self.silent, draws)], 7, None, together)
            for _ in range(self.answers)
        ]
        self.outputs = [[] for _ in range(self.answers)]

    @property
    def tokens(self) -> int:
        return sum(map(len, self.outputs))

    def run(self, limit: DraftLimit, steps: int) -> float:
        """Tokens a second."""
        drafted_before = False
        for step in range(steps):
            most = limit.next(self.answers, self._drafting)
            planned = not (most or drafted_before)
            lengths = self._proposed(limit, most, step)
            self.chosen.append(max(lengths, default=0))
            with_drafts = sum(map(bool, lengths))
            shape = StepShape(self.answers - with_drafts, with_drafts, 1 + max(lengths))
            seconds = self.costs(shape, step) * (1 + _NOISE * abs(self._chance.normal()))
            if not planned:
                seconds += _WAIT * self.costs(StepShape(self.answers, 0, 1), step)
            self.seconds += seconds
            # Something else of the host, which drafts or not would have to wait for.
            other = 3 if self._chance.random() < 0.003 else 1
            limit.landed(shape, self._land(lengths), other * seconds, planned=planned)
            drafted_before = bool(with_drafts)
        return self.tokens / self.seconds

    def _proposed(self, limit: DraftLimit, most: int, step: int) -> list[int]:
        """Drafts of each answer that are verified."""
        self._drafts: list[tuple[int, ...]] = [()] * self.answers
        if not most:
            for place in range(step, step + limit.watched):
                row = place % self.answers
                self._drafting[row].watch(self.outputs[row])
            return [0] * self.answers
        found = [
            one.propose(output, most)
            for one, output in zip(self._drafting, self.outputs, strict=True)
        ]
        lengths = [(one, len(drafts)) for one, drafts in zip(self._drafting, found, strict=True)]
        worth = limit.of_step(self.answers, lengths)
        self._drafts = [drafts[:worth] for drafts in found]
        return [len(drafts) for drafts in self._drafts]

    def _land(self, lengths: Sequence[int]) -> int:
        """Tokens that the step gave."""
        before = self.tokens
        for one, output, drafts in zip(self._drafting, self.outputs, self._drafts, strict=True):
            held = 0
            while held < len(drafts) and drafts[held] == len(output) + held:
                held += 1
            if drafts:
                one.verified(len(drafts), held)
            output += range(len(output), len(output) + held + 1)
        return self.tokens - before
