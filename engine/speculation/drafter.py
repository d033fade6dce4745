"""What proposes the next tokens of an answer: the protocol. A draft is only a guess: every token of
an answer is the model's own draw, whatever was proposed (engine/runner/cpu_runner.py)."""

from collections.abc import Sequence
from enum import Enum
from typing import Protocol


class DraftSource(Enum):
    """What a draft was taken from. prediction: what the request said its answer would be. mtp:
    the model's own draft layer. tree: tokens that stand elsewhere behind the same ones. grammar:
    text that the answer's grammar leaves no choice of."""

    PREDICTION = "prediction"
    MTP = "mtp"
    TREE = "tree"
    GRAMMAR = "grammar"


class Drafter(Protocol):
    """One request's. Thread rule: the engine loop's."""

    @property
    def source(self) -> DraftSource: ...

    def propose(self, output: Sequence[int], most: int) -> list[int]:
        """At most so many tokens that may follow the answer's so far; none where nothing is known.
        output: at each call what it was at the last one, and maybe more."""

    def verified(self, drafted: int, accepted: int) -> None:
        """So many of what was proposed last were verified, and so many of these held."""
