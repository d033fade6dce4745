"""Grammars tried as a node tries them, for tests that have no node."""

from tasuki.model.grammar.grammar import Grammar
from tasuki.model.grammar.trials.client import GrammarTrials, outcome_raised
from tests.harness.waiting import HANG_SECONDS


def check(trials: GrammarTrials, grammar: Grammar) -> None:
    """Wait for the verdict. Raises as GrammarTrials.check()."""
    verdict = trials.verdict("", grammar.kind, grammar.source)
    outcome_raised(verdict.result(HANG_SECONDS))
