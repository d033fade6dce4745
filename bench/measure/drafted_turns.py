"""What drafts gain: one engine whose answers have none, a fixed number of drafts, and as many as a
node finds worth their time, by turns, so that a clock that drifts and contexts that grow move all.

Single-threaded. Without drafts it plans ahead, as an engine does that drafts nothing.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import TypeVar

from tasuki.engine import messages as m
from tasuki.engine.assembly.engines import draft_limit
from tasuki.engine.config import EngineConfig
from tasuki.engine.forward_plan import Ints
from tasuki.model.config import ModelConfig

from .known_answers import known_answer
from .rig import Answer, Rig, random_parts
from .scripted_drafts import Script, ScriptedSpeculation, drawing_by_noise
from .turn_limit import Turn, TurnLimit

T = TypeVar("T")

_TURN = 8
"""Steps that are timed before the other one's turn."""
_SETTLING = 3
"""Steps ahead of them: the first ones land what was launched before."""
_ROUNDS = ((Turn.MOST, Turn.OFF, Turn.MEASURED), (Turn.OFF, Turn.MEASURED, Turn.MOST))
"""Who is first of the fixed number and none takes turns too. What a node finds comes behind steps
without drafts, which it measures."""
_TRIED = 32
"""Steps in which it finds that, before any is timed."""


@dataclass(frozen=True)
class TurnTimes:
    """Mean seconds of a step, and mean tokens of it and an answer, turn by turn."""

    seconds: Sequence[float]
    tokens: Sequence[float]


@dataclass(frozen=True)
class DraftGain:
    """drafts: of each step of Turn.MEASURED, of an answer at most."""

    turns: Mapping[Turn, TurnTimes]
    drafts: Sequence[int]

    def times(self, turn: Turn, tokens: float | None = None) -> float:
        """Its tokens a second to those without drafts: the median over turns. tokens: of a step and
        answer, where that is known better than by what each turn gave."""
        own, off = self.turns[turn], self.turns[Turn.OFF]
        return median(
            (given if tokens is None else tokens) * without / seconds
            for given, seconds, without in zip(own.tokens, own.seconds, off.seconds, strict=True)
        )


class DraftedTurns:
    def __init__(
        self, model: ModelConfig, config: EngineConfig, script: Script, quantization: str = ""
    ) -> None:
        """config: that drafts. quantization: how weights are stored; none: plain. Raises
        EngineConfigError."""
        most = len(script.likely)
        on_gpu = config.device != "cpu"
        self._limit = TurnLimit(most, draft_limit(config, most, on_gpu=on_gpu))
        self._most = most
        drawn = random_parts(model, config, quantization=quantization)
        parts = drawing_by_noise(drawn, config)
        head = parts.model.weights.head.plain

        def answer(message: m.Submit) -> Ints:
            first = len(message.prompt)
            return known_answer(message.sampling, first, model.vocab, head.dtype, head.device)

        speculation = ScriptedSpeculation(script, config, answer)
        self.rig = Rig(model, config, replace(parts, speculation=speculation, drafts=self._limit))

    def tokens(self, steps: int) -> int:
        """Of an answer at most, for so many steps of each."""
        timed = (_SETTLING + _TURN) * -(-steps // _TURN)
        return timed * (1 + 2 * (1 + self._most)) + _TRIED * (1 + self._most)

    def decode(self, answers: Sequence[Answer], steps: int) -> DraftGain:
        """At least so many steps of each. REQUIRES: the answers have room for tokens(), and have
        had steps without drafts."""
        self._limit.turn = Turn.MEASURED
        for _ in range(_TRIED):
            self.rig.step()
        self._limit.drafts.clear()
        found: dict[Turn, list[tuple[float, float]]] = {turn: [] for turn in Turn}
        for number in range(-(-steps // _TURN)):
            for turn in _ROUNDS[number % 2]:
                self._limit.turn = turn
                found[turn].append(self._turn(answers))
        self._limit.turn = Turn.OFF
        times = {turn: TurnTimes(*zip(*turns, strict=True)) for turn, turns in found.items()}
        return DraftGain(times, list(self._limit.drafts))

    def in_turn(self, turn: Turn, work: Callable[[], T]) -> T:
        """What `work` returns, whose steps are of that turn. REQUIRES: as decode()."""
        self._limit.turn = turn
        for _ in range(_SETTLING):
            self.rig.step()
        found = work()
        self._limit.turn = Turn.OFF
        return found

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
