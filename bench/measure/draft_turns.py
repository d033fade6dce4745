"""The gain of drafts, and the cost of a draft layer's KV entries.

The compared settings alternate in one run, each for a turn of some steps. So a drifting clock and
growing contexts affect both alike. DraftedTurns has one engine. Its answers have no drafts, a fixed
number, or the number chosen by a node from measured times. DraftPair has two engines over one set
of weights. One of them stores entries of a draft layer; both engines' work goes to one stream.
Single-threaded. Without drafts an engine plans ahead.
"""

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from itertools import chain, pairwise
from statistics import median
from typing import TypeVar

from tasuki.engine.assembly.engines import draft_limit
from tasuki.engine.assembly.parts import (
    EngineParts,
    activations_of,
    build_arena,
    torch_device,
    use_device,
)
from tasuki.engine.config import EngineConfig
from tasuki.engine.speculation.draft_limit import DraftLimit, StepShape
from tasuki.engine.speculation.drafting import Drafting
from tasuki.model.config import ModelConfig
from tasuki.model.families.family import Assembly
from tasuki.model.families.loading import build_model
from tasuki.model.grammar.grammar_compiler import GrammarCompiler
from tasuki.pycache._cpp_cache import StepCounter

from .report import Row
from .rig import Answer, Rig, drawn_weights, made_up_vocabulary, random_parts
from .scripted_drafts import Script, scripted


class Turn(Enum):
    OFF = "off"
    MOST = "most"
    MEASURED = "measured"


class TurnLimit:
    """The limit on a step's drafts while a bench alternates settings.

    Owns the limit measured by a real node. This inner limit learns from its own turns and from
    turns without drafts. Thread rule: the engine loop's thread.
    """

    def __init__(self, most: int, measured: DraftLimit) -> None:
        """Set up the limit. most: fixed number of drafts in turns of Turn.MOST. measured: a node's
        own limit, used in turns of Turn.MEASURED."""
        self._most = most
        self._measured = measured
        self.turn = Turn.OFF
        self.drafts: list[int] = []
        """Largest number of drafts of an answer, for each step of Turn.MEASURED."""

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

    def completed(self, shape: StepShape, tokens: int, seconds: float, *, planned: bool) -> None:
        # Losses by drafts chosen elsewhere do not count against the measured limit.
        if self.turn is Turn.MEASURED or (self.turn is Turn.OFF and not shape.drafted):
            self._measured.completed(shape, tokens, seconds, planned=planned)
        if self.turn is Turn.MEASURED:
            self.drafts.append(shape.tokens - 1 if shape.drafted else 0)


T = TypeVar("T")

_TURN = 8
"""Number of timed steps in a turn."""
_SETTLING = 3
"""Number of untimed steps at a turn's start. They complete earlier launches, or wait for the other
engine's."""
_ROUNDS = ((Turn.MOST, Turn.OFF, Turn.MEASURED), (Turn.OFF, Turn.MEASURED, Turn.MOST))
"""Order of the turns in even and odd rounds. MOST and OFF alternate in first place. MEASURED
follows OFF, because it measures steps without drafts."""
_TRIED = 32
"""Number of untimed steps at the start: in them a node's own limit finds its number of drafts."""


@dataclass(frozen=True)
class TurnTimes:
    """The means of each turn of one setting. seconds: duration of a step. tokens: tokens of one
    answer in a step."""

    seconds: Sequence[float]
    tokens: Sequence[float]


@dataclass(frozen=True)
class DraftGain:
    """The measured gain of drafts. turns: times by setting. drafts: largest number of drafts of an
    answer, for each step of Turn.MEASURED."""

    turns: Mapping[Turn, TurnTimes]
    drafts: Sequence[int]

    def times(self, turn: Turn, tokens: float | None = None) -> float:
        """Return the speedup of the setting `turn` over no drafts: the median ratio of tokens a
        second. tokens: mean tokens of one answer in a step, if known better than from each turn."""
        own, off = self.turns[turn], self.turns[Turn.OFF]
        return median(
            (given if tokens is None else tokens) * without / seconds
            for given, seconds, without in zip(own.tokens, own.seconds, off.seconds, strict=True)
        )


class DraftedTurns:
    def __init__(
        self, model: ModelConfig, config: EngineConfig, script: Script, quantization: str = ""
    ) -> None:
        """Set up the engine. config: with drafts enabled. quantization: format of the weights;
        empty: plain. Raises EngineConfigError."""
        most = len(script.likely)
        on_gpu = config.device != "cpu"
        self._limit = TurnLimit(most, draft_limit(config, most, on_gpu=on_gpu))
        self._most = most
        drawn = random_parts(model, config, quantization=quantization)
        parts = scripted(drawn, config, script)
        self.rig = Rig(model, config, replace(parts, drafts=self._limit))

    def tokens(self, steps: int) -> int:
        """Return the largest number of tokens an answer may receive during `steps` steps of each
        setting."""
        timed = (_SETTLING + _TURN) * -(-steps // _TURN)
        return timed * (1 + 2 * (1 + self._most)) + _TRIED * (1 + self._most)

    def decode(self, answers: Sequence[Answer], steps: int) -> DraftGain:
        """Measure at least `steps` steps of each setting. REQUIRES: the answers have at least
        tokens() tokens left, and have had steps without drafts."""
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
        """Run `work` with the engine's steps in the setting `turn`, and return its result.
        REQUIRES: the conditions of decode()."""
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
        # Each step completes one forward, launched in it or before it, so equally many begin and
        # end.
        for _ in range(_TURN):
            self.rig.step()
        seconds = time.perf_counter() - began
        tokens = sum(len(answer.tokens) for answer in answers) - before
        return seconds / _TURN, tokens / _TURN / len(answers)


@dataclass(frozen=True)
class Turns:
    """Measured seconds of two engines, [turn][measurement]. kept: the engine storing a draft
    layer's entries. off: the engine without a draft layer."""

    kept: Sequence[Sequence[float]]
    off: Sequence[Sequence[float]]

    @property
    def ratio(self) -> float:
        """Return the slowdown by a draft layer: for each turn the ratio of the two engines' median
        seconds, and of these ratios the median."""
        turns = zip(self.kept, self.off, strict=True)
        return median(median(kept) / median(off) for kept, off in turns)


@dataclass(frozen=True)
class DraftPair:
    """Two engines over one set of weights. kept: stores a draft layer's entries. off: has no draft
    layer."""

    kept: Rig
    off: Rig

    @staticmethod
    def of(model: ModelConfig, config: EngineConfig) -> "DraftPair":
        """Build the two engines. config: settings of each of them, including its arena."""
        device = torch_device(config)
        use_device(device)
        shapes = [replace(model, draft_layers=layers) for layers in (1, 0)]
        # Build the arenas before the weights, because a plan of memory counts the weights for each.
        arenas = [build_arena(config, shape, device) for shape in shapes]
        weights = drawn_weights(shapes[0], config)
        grammars = GrammarCompiler(made_up_vocabulary(model.vocab))
        rigs = []
        for shape, arena in zip(shapes, arenas, strict=True):
            built = build_model(shape, weights, Assembly(activations=activations_of(config)))
            parts = EngineParts(shape, built, arena, StepCounter(), grammars=grammars)
            rigs.append(Rig(shape, config, parts))
        return DraftPair(*rigs)

    def decode(
        self, answers: tuple[Sequence[Answer], Sequence[Answer]], steps: int, warmup: int
    ) -> Turns:
        """Time at least `steps` steps of each engine. answers: the answers running in `kept`, and
        those running in `off`. warmup: untimed steps."""
        rigs = (self.kept, self.off)
        youngest = [max(some, key=lambda answer: answer.times[0]) for some in answers]
        for rig, answer in zip(rigs, youngest, strict=True):
            rig.run_until_tokens([answer], warmup + 1)
        found: tuple[list[list[float]], list[list[float]]] = ([], [])
        for number in range(-(-steps // _TURN)):
            # The first one is second in the next round.
            for place in (0, 1) if number % 2 else (1, 0):
                found[place].append(_next_steps(rigs[place], youngest[place]))
        return Turns(*found)

    def prefill(self, tokens: int, repeats: int) -> Turns:
        """Measure the seconds to the first token of new prompts, after one untimed prompt. tokens:
        length of a prompt. repeats: prompts for each engine."""
        rigs = (self.kept, self.off)
        found: tuple[list[list[float]], list[list[float]]] = ([], [])
        for number in range(1 + repeats):
            for place in (0, 1) if number % 2 else (1, 0):
                rig = rigs[place]
                answer = rig.submit(rig.prompt(tokens), 1)
                rig.run()
                found[place].append([answer.first_token_seconds])
                rig.flush()
        return Turns(*(seconds[1:] for seconds in found))


def beside_without(row: Row, turns: Turns, most: float) -> Row:
    """Return the row of the engine with a draft layer, compared with the engine without one. most:
    largest accepted slowdown, as a share (0.01 is 1 %)."""
    named = replace(
        row,
        name=f"{row.name}, with a draft layer",
        others={"without": median(chain(*turns.off))},
        extra={"slower %": 100 * (turns.ratio - 1), **row.extra},
    )
    return named.asked((f"<= {most:.1%} slower than without", turns.ratio <= 1 + most))


def _next_steps(rig: Rig, answer: Answer) -> list[float]:
    """Return the seconds of an engine's next timed steps; the untimed steps come first. answer:
    timed by its tokens."""
    first = len(answer.times) + _SETTLING
    rig.run_until_tokens([answer], first + _TURN + 1)
    return [after - before for before, after in pairwise(answer.times[first : first + _TURN + 1])]
