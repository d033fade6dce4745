"""Drafts that hold, and are as many, as a test says, for an engine that is driven by hand."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from random import Random

from tasuki.engine import messages as m
from tasuki.engine.speculation.draft_limit import DraftLimit, FixedLimit
from tasuki.engine.speculation.drafting import Drafting, DraftSource
from tasuki.engine.speculation.step_costs import StepShape
from tests.harness.engines import TINY, Lone


class ScriptedDrafter:
    """Proposes the answer that is known, wrong behind as many tokens as `held` says each time."""

    source = DraftSource.TREE

    def __init__(self, answer: Sequence[int], held: Iterator[int]) -> None:
        self._answer = answer
        self._held = held

    def propose(self, output: Sequence[int], most: int) -> list[int]:
        assert list(output) == list(self._answer[: len(output)])
        drafts = list(self._answer[len(output) : len(output) + most])
        wrong = next(self._held)
        if wrong < len(drafts):
            drafts[wrong] = (drafts[wrong] + 1) % TINY["vocab_size"]
        return drafts

    def verified(self, drafted: int, accepted: int) -> None:
        return None


def draft(
    engine: Lone, answers: Mapping[str, Sequence[int]], most: int, held: Iterator[int]
) -> None:
    """From now on requests whose answers are known, by id, are drafted from them, others not."""

    def drafting(message: m.Submit) -> Drafting | None:
        answer = answers.get(message.request_id)
        return None if answer is None else Drafting([ScriptedDrafter(answer, held)], most)

    engine.engine._handover._speculation.drafting = drafting  # type: ignore[attr-defined]


@dataclass(frozen=True)
class Landed:
    shape: StepShape
    tokens: int
    seconds: float
    planned: bool


class ScriptedLimit(FixedLimit):
    """Other numbers each step; keeps what was measured."""

    def __init__(self, numbers: Iterator[int], cuts: Iterator[int]) -> None:
        """cuts: of what was proposed."""
        super().__init__(0)
        self._numbers = numbers
        self._cuts = cuts
        self.landings: list[Landed] = []

    @property
    def watched(self) -> int:
        return 2

    def next(self, answers: int, drafting: Collection[Drafting]) -> int:
        return next(self._numbers)

    def of_step(self, answers: int, proposed: Sequence[tuple[Drafting, int]]) -> int:
        return next(self._cuts)

    def landed(self, shape: StepShape, tokens: int, seconds: float, *, planned: bool) -> None:
        self.landings.append(Landed(shape, tokens, seconds, planned))


def any_limit(seed: int, most: int) -> ScriptedLimit:
    def numbers(generator: Random) -> Iterator[int]:
        while True:
            yield max(0, generator.randrange(-2, most + 1))

    return ScriptedLimit(numbers(Random(seed)), numbers(Random(seed + 1)))


def limited(engine: Lone, limit: DraftLimit) -> None:
    engine.engine._scheduler._drafts = limit
