"""Whether two runs of one session gave the same tokens.

Pure. The oracle's margins show where a choice was so near a tie that rounding may decide it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest

from tasuki.client.answer import Answer

TIE_MARGIN = 1e-3
TIE_SHARE = 1e-3


@dataclass(frozen=True)
class Verdict:
    """tokens: compared. ties: (turn, position) where the runs part at a near tie; what follows
    such a position is another text, and not compared. difference: the first place where they part
    without one.
    """

    tokens: int
    ties: tuple[tuple[int, int], ...]
    difference: tuple[int, int] | None

    @property
    def equal(self) -> bool:
        return self.difference is None and len(self.ties) <= TIE_SHARE * self.tokens

    def __str__(self) -> str:
        if self.difference is not None:
            turn, position = self.difference
            return f"NOT EQUAL: the runs part in turn {turn} at token {position}"
        ties = "".join(
            f"; near tie in turn {turn} at token {position}" for turn, position in self.ties
        )
        word = "EQUAL" if self.equal else "NOT EQUAL (too many near ties)"
        return f"{word}: {self.tokens} tokens compared{ties}"


def compare(answers: Sequence[Answer], oracle: Sequence[Answer]) -> Verdict:
    """One session's answers, turn by turn, against the same session's in the oracle."""
    tokens = 0
    for turn, (ours, theirs) in enumerate(zip(answers, oracle, strict=True), 1):
        rows = zip_longest(ours.token_ids, theirs.token_ids, theirs.margins)
        for position, (token, expected, margin) in enumerate(rows):
            tokens += 1
            if token == expected:
                continue
            if margin is not None and margin < TIE_MARGIN:
                return Verdict(tokens, ((turn, position),), None)
            return Verdict(tokens, (), (turn, position))
    return Verdict(tokens, (), None)
