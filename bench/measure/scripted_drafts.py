"""Answers whose drafts hold as a script says, in an engine that does all the work of drafts.

The model's head is zero, so that every logit is, and the lowest of equal ids, 0, is drawn each
time. A draft of 0 holds then, and a draft of 1 does not. The node's own drafters look for drafts as
they do for any answer; the script puts its own in their place, and the engine verifies these as any
others. All tokens being one, experts would be too: for dense models only.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from operator import mul

import numpy as np
import torch

from tasuki.engine import messages as m
from tasuki.engine.build import EngineParts
from tasuki.engine.speculation.drafter import Drafter, DraftSource
from tasuki.engine.speculation.drafting import Drafting
from tasuki.engine.speculation.speculation import Speculation
from tasuki.model.qwen3_5 import Qwen35Model
from tasuki.model.weights.matrix import Matrix

_DRAWN, _OTHER = 0, 1
_GOLDEN = (5**0.5 - 1) / 2
"""Its multiples fill [0, 1) evenly however many there are: few steps hold as often as many."""


@dataclass(frozen=True)
class Script:
    """How likely each draft of a row holds where those before it do; each in [0, 1]."""

    likely: tuple[float, ...]

    @staticmethod
    def parse(text: str, drafts: int) -> "Script":
        """From ".80/.75/.72", of so many drafts: the last one stands for those behind it. Raises
        ValueError."""
        try:
            likely = [float(number) for number in text.split("/")]
        except ValueError:
            likely = []
        if not likely or not all(0 <= part <= 1 for part in likely):
            raise ValueError(f"accept {text!r}: write how likely drafts hold, as .80/.75/.72")
        likely += likely[-1:] * drafts
        return Script(tuple(likely[:drafts]))

    @property
    def reached(self) -> list[float]:
        """How likely a step's first drafts hold, as many as each place says."""
        return list(accumulate(self.likely, mul))

    @property
    def tokens(self) -> float:
        """Of a step and answer, in the mean."""
        return 1 + sum(self.reached)

    def __str__(self) -> str:
        return "/".join(f"{part:.2f}" for part in self.likely)


class _Draws:
    """Numbers in [0, 1), of all answers together."""

    def __init__(self) -> None:
        self._count = 0

    def next(self) -> float:
        self._count += 1
        return self._count * _GOLDEN % 1


class ScriptedDrafter:
    def __init__(self, script: Script, drafter: Drafter, draws: _Draws) -> None:
        """drafter: that does the work of looking for drafts."""
        self._script = script
        self._drafter = drafter
        self._draws = draws

    @property
    def source(self) -> DraftSource:
        return self._drafter.source

    def propose(self, output: Sequence[int], most: int) -> list[int]:
        """As many as may be: those that hold, then others."""
        self._drafter.propose(output, most)
        drawn = self._draws.next()
        return [_DRAWN if drawn < part else _OTHER for part in self._script.reached[:most]]

    def verified(self, drafted: int, accepted: int) -> None:
        self._drafter.verified(drafted, accepted)


class ScriptedSpeculation(Speculation):
    """Every answer is drafted, by the drafter that the config asks for."""

    def __init__(self, script: Script, *, from_tree: bool) -> None:
        super().__init__(len(script.likely), from_tree=from_tree)
        self._script = script
        self._from_tree = from_tree
        self._draws = _Draws()

    def drafting(self, message: m.Submit) -> Drafting | None:
        if not self._from_tree:
            length = message.sampling.max_new_tokens
            message = replace(message, prediction=np.full(length, _DRAWN, dtype=np.int32))
        own = super().drafting(message)
        assert own is not None
        drafters = [ScriptedDrafter(self._script, one, self._draws) for one in own.drafters]
        return Drafting(drafters, len(self._script.likely))


def drawing_one_token(parts: EngineParts) -> EngineParts:
    """The same, whose model draws one token, whatever it is given."""
    weights = parts.model.weights
    head = Matrix.of(torch.zeros_like(weights.head.plain))
    model = Qwen35Model(parts.model.config, replace(weights, head=head), parts.model.backend)
    return replace(parts, model=model)
