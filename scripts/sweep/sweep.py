"""A sweep: point after point, and what was seen.

Owns the order of things. Thread rule: one thread.
"""

import secrets
from collections.abc import Callable
from dataclasses import dataclass, field

from scripts.sweep.deaths import Death, die, windows_of
from scripts.sweep.points import Point
from scripts.sweep.world import CHUNK, World
from tests.harness.daemons import Question, questions

_ANSWER_TOKENS = 8
PROMPT_TOKENS = CHUNK + CHUNK // 2
"""Two forwards: the first sends pages, the last pages and the state."""


@dataclass
class Swept:
    deaths: list[Death] = field(default_factory=list)
    troubles: list[str] = field(default_factory=list)
    """What must not be, one line each."""

    def __str__(self) -> str:
        if not self.deaths:
            return "nothing died as promised"
        return (
            f"{'FAILED' if self.troubles else 'PASSED'}: {len(self.deaths)} deaths, "
            f"{sum(death.point.sends for death in self.deaths)} of senders, "
            f"{sum(death.fell_back for death in self.deaths)} prompts prefilled anew; noticed "
            f"within {1000 * max(death.noticed for death in self.deaths):.0f} ms, at rest within "
            f"{1000 * max(death.rested for death in self.deaths):.0f} ms; "
            f"{len(self.troubles)} troubles"
        )


def sweep(choose: Callable[[int], tuple[Point, ...]], say: Callable[[Death], None]) -> Swept:
    """choose: from the windows of a hand-over to the points. say: called after each death."""
    swept = Swept()
    (question,) = questions((PROMPT_TOKENS,))
    # A few tokens: the answer is not what dies here, and the death after Done comes at its start.
    question = Question(question.prompt, question.tokens[:_ANSWER_TOKENS])
    run = secrets.token_bytes(8)
    with World() as world:
        for number, point in enumerate(choose(windows_of(world, question))):
            try:
                death = die(world, question, point, run + number.to_bytes(4, "big"))
            except AssertionError as error:
                swept.troubles.append(str(error))
                continue
            swept.deaths.append(death)
            say(death)
    return swept
