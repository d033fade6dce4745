"""Progress of an answer through its thought (its thinking tokens), and the effect of its thinking
budget on the next token.

Invariants:
1. A forced token depends on the tokens sampled so far only, so any node forces the same one.
2. A thought has at most `most` tokens before its closing.
3. The closing never begins inside a UTF-8 character, if the model finishes its characters.
"""

from collections.abc import Sequence

from tasuki.model.grammar.constraint import Mask
from tasuki.model.grammar.vocabulary import UnfinishedTokens

from .thinking_budget import ThinkingBudget


class BudgetedThought:
    """Progress of one answer through its thought, under a thinking budget. One thread at a time."""

    def __init__(
        self, budget: ThinkingBudget, unfinished: UnfinishedTokens | None, output: Sequence[int]
    ) -> None:
        """budget: the answer's thinking budget. unfinished: the vocabulary's tokens ending inside a
        UTF-8 character; None: the tokens' texts are not known. output: tokens of the answer so
        far."""
        self._budget = budget
        self._unfinished = unfinished
        self._may_open = budget.opening is not None
        self._left = budget.most
        """Number of tokens left for the thought."""
        self._forced = 0
        """Number of closing tokens sampled so far. They begin when no token is left for the
        thought."""
        self._is_over = False
        for token in output:
            self.append(token)

    def append(self, token: int) -> None:
        """Append the answer's next token. Once the thinking is over it has no effect."""
        if self._is_over:
            return
        if self._may_open:
            self._may_open = False
            self._is_over = token != self._budget.opening
        elif self._left:
            self._is_over = token == self._budget.tag
            self._left -= 1
        else:
            self._forced += 1
            self._is_over = self._forced == len(self._budget.closing)

    @property
    def forced(self) -> int | None:
        """Return the next token if the thinking budget forces it; None: the model chooses."""
        if self._is_over or self._may_open or self._left:
            return None
        return self._budget.closing[self._forced]

    @property
    def mask(self) -> Mask | None:
        """Return the mask of tokens whose last UTF-8 character can be finished before the thought
        must end; None: every token is allowed. The mask is read-only."""
        if self._is_over or self._may_open or not self._left or self._unfinished is None:
            return None
        return self._unfinished.finished_by(self._left - 1)
