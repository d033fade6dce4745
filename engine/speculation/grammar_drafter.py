"""Drafts of an answer under a grammar: text that the grammar leaves no choice of, such as the names
of a schema's keys, and of what others propose only as much as it allows.

Follows the answer with a constraint of its own, made at the first look: the one that masks logits
is the runner's. Thread rule: the engine loop's.
"""

from collections.abc import Callable, Sequence
from typing import Protocol

from tasuki.model.grammar.constraint import Constraint
from tasuki.model.grammar.grammar import Grammar

from .drafter import Drafter, DraftSource


class Grammars(Protocol):
    def constraint(self, grammar: Grammar, output: Sequence[int]) -> Constraint:
        """As far as an answer has come. REQUIRES: the grammar was ready before."""


class AnswerGrammar:
    """Where one answer is in its grammar."""

    def __init__(self, grammar: Grammar, grammars: Grammars) -> None:
        self._make: Callable[[], Constraint] = lambda: grammars.constraint(grammar, ())
        self._constraint: Constraint | None = None
        self._seen = 0

    def behind(self, output: Sequence[int]) -> Constraint:
        """output: at each call what it was at the last one, and maybe more. REQUIRES: it runs, so
        that its grammar is compiled."""
        if self._constraint is None:
            self._constraint = self._make()
        for token in output[self._seen :]:
            self._constraint.append(token)
        self._seen = len(output)
        return self._constraint


class ForcedDrafter:
    """Proposes the text that has to come, in the longest tokens there are."""

    def __init__(self, grammar: AnswerGrammar) -> None:
        self._grammar = grammar

    @property
    def source(self) -> DraftSource:
        return DraftSource.GRAMMAR

    def propose(self, output: Sequence[int], most: int) -> list[int]:
        return self._grammar.behind(output).forced(most)

    def verified(self, drafted: int, accepted: int) -> None:
        """The answer shows it."""


class AllowedDrafter:
    """Proposes what another one does, up to what the grammar rules out."""

    def __init__(self, drafter: Drafter, grammar: AnswerGrammar) -> None:
        self._drafter = drafter
        self._grammar = grammar

    @property
    def source(self) -> DraftSource:
        return self._drafter.source

    def propose(self, output: Sequence[int], most: int) -> list[int]:
        drafts = self._drafter.propose(output, most)
        return drafts[: self._grammar.behind(output).allowed(drafts)] if drafts else []

    def verified(self, drafted: int, accepted: int) -> None:
        self._drafter.verified(drafted, accepted)
