"""What keeping the draft layer's entries costs: two engines over one set of weights, of which one
keeps them, that take turns in one run, so that a clock that drifts moves both.

Single-threaded; both engines' work goes to one stream.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import median

from tasuki.engine.assembly.engines import (
    EngineParts,
    build_arena,
    build_model,
    torch_device,
    use_device,
)
from tasuki.engine.config import EngineConfig
from tasuki.model.config import ModelConfig
from tasuki.model.grammar.grammar_compiler import GrammarCompiler
from tasuki.transfer.windows.window import StepCounter

from .made_up_vocabulary import made_up_vocabulary
from .rig import Answer, Rig, drawn_weights

_TURN = 8
"""Steps of one engine that are timed before the other one's turn."""
_SETTLING = 3
"""Steps ahead of them: the first ones land what was launched before, or wait for the other's."""


@dataclass(frozen=True)
class Turns:
    """Seconds of each piece of work, by turns. kept, off: of the engine that keeps entries and of
    the other one."""

    kept: Sequence[Sequence[float]]
    off: Sequence[Sequence[float]]

    @property
    def ratio(self) -> float:
        """Median over turns of the one's median by the other's."""
        turns = zip(self.kept, self.off, strict=True)
        return median(median(kept) / median(off) for kept, off in turns)


@dataclass(frozen=True)
class DraftPair:
    """kept: keeps entries; off: has no draft layer."""

    kept: Rig
    off: Rig

    @staticmethod
    def of(model: ModelConfig, config: EngineConfig) -> "DraftPair":
        """config: of each of the two, its arena included."""
        device = torch_device(config)
        use_device(device)
        shapes = [replace(model, draft_layers=layers) for layers in (1, 0)]
        # Before the weights, which a plan of memory counts for each.
        arenas = [build_arena(config, shape, device) for shape in shapes]
        weights = drawn_weights(shapes[0], config)
        grammars = GrammarCompiler(made_up_vocabulary(model.vocab))
        rigs = []
        for shape, arena in zip(shapes, arenas, strict=True):
            some = weights if shape.draft_layers else replace(weights, draft=None)
            built = build_model(shape, some)
            parts = EngineParts(shape, built, arena, StepCounter(), grammars=grammars)
            rigs.append(Rig(shape, config, parts))
        return DraftPair(*rigs)

    def decode(
        self, answers: tuple[Sequence[Answer], Sequence[Answer]], steps: int, warmup: int
    ) -> Turns:
        """At least so many steps of each engine; answers: that run in kept and in off."""
        rigs = (self.kept, self.off)
        youngest = [max(some, key=lambda answer: answer.times[0]) for some in answers]
        for rig, answer in zip(rigs, youngest, strict=True):
            rig.run_until_tokens([answer], warmup + 1)
        found: tuple[list[list[float]], list[list[float]]] = ([], [])
        for number in range(-(-steps // _TURN)):
            # Whoever begins is second in the next round.
            for place in (0, 1) if number % 2 else (1, 0):
                found[place].append(_turn(rigs[place], youngest[place]))
        return Turns(*found)

    def prefill(self, tokens: int, repeats: int) -> Turns:
        """To the first token of other prompts of so many tokens; one more goes ahead, untimed."""
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


def _turn(rig: Rig, answer: Answer) -> list[float]:
    """Seconds of each of the engine's next steps but the first."""
    first = len(answer.times) + _SETTLING
    rig.run_until_tokens([answer], first + _TURN + 1)
    return [after - before for before, after in pairwise(answer.times[first : first + _TURN + 1])]
