"""What drafts gain: one engine whose answers have drafts, and have none, by turns, so that a clock
that drifts and contexts that grow move both.

Single-threaded. Without drafts it plans ahead, as an engine does that drafts nothing.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median

from tasuki.engine.config import EngineConfig
from tasuki.engine.speculation.draft_limit import FixedLimit
from tasuki.model.config import ModelConfig

from .rig import Answer, Rig, random_parts
from .scripted_drafts import Script, ScriptedSpeculation, drawing_one_token

_TURN = 8
"""Steps that are timed before the other one's turn."""
_SETTLING = 3
"""Steps ahead of them: the first ones land what was launched before."""


@dataclass(frozen=True)
class DraftGain:
    """Mean seconds of a step, and mean tokens of it and an answer, turn by turn."""

    off: Sequence[float]
    on: Sequence[float]
    tokens: Sequence[float]

    def times(self, tokens: float) -> float:
        """The tokens a second with drafts to those without, where a step gives so many of an
        answer: the median over turns."""
        return median(tokens * off / on for off, on in zip(self.off, self.on, strict=True))


class DraftedTurns:
    def __init__(self, model: ModelConfig, config: EngineConfig, script: Script) -> None:
        """config: that drafts. Raises EngineConfigError."""
        self._limit = FixedLimit(0)
        self._most = len(script.likely)
        parts = drawing_one_token(random_parts(model, config))
        speculation = ScriptedSpeculation(script, from_tree=config.speculate == "tree")
        self.rig = Rig(model, config, replace(parts, speculation=speculation, drafts=self._limit))

    def tokens(self, steps: int) -> int:
        """Of an answer at most, for so many steps with drafts."""
        return 2 * (_SETTLING + _TURN) * -(-steps // _TURN) * (1 + self._most)

    def decode(self, answers: Sequence[Answer], steps: int) -> DraftGain:
        """At least so many steps of each. REQUIRES: the answers have room for tokens()."""
        found: dict[int, list[tuple[float, float]]] = {0: [], self._most: []}
        for number in range(-(-steps // _TURN)):
            # Whoever begins is second in the next round.
            for drafts in (0, self._most) if number % 2 else (self._most, 0):
                self._limit.most = drafts
                found[drafts].append(self._turn(answers))
        off, on = found[0], found[self._most]
        return DraftGain([one for one, _ in off], [one for one, _ in on], [two for _, two in on])

    def _turn(self, answers: Sequence[Answer]) -> tuple[float, float]:
        for _ in range(_SETTLING):
            self.rig.step()
        before, began = sum(len(answer.tokens) for answer in answers), time.perf_counter()
        # A step lands one forward, launched in it or before it, so that as many end as begin.
        for _ in range(_TURN):
            self.rig.step()
        seconds = time.perf_counter() - began
        tokens = sum(len(answer.tokens) for answer in answers) - before
        return seconds / _TURN, tokens / _TURN / len(answers)
