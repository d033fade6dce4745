"""Drafts that hold as far as a test says, for an engine that is driven by hand."""

from collections.abc import Iterator, Mapping, Sequence

from tasuki.engine import messages as m
from tasuki.engine.speculation.drafter import DraftSource
from tasuki.engine.speculation.drafting import Drafting
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
