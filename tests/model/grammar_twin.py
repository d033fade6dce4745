"""The naive reference of model/grammar/constraint.py: every token is tried after all tokens before
it."""

from collections.abc import Sequence
from functools import cache
from typing import Any

from tasuki.model.grammar.compiled_grammar import compiled, token_tree
from tasuki.model.grammar.grammar import Grammar
from tasuki.model.grammar.vocabulary import Vocabulary


def naive_tokens(grammar: Grammar, vocabulary: Vocabulary, output: Sequence[int]) -> list[int]:
    """Return the tokens that may continue the answer."""
    every = list(range(len(vocabulary.tokens)))
    said = list(output)
    begins_answer = grammar.closing is not None and grammar.opening is not None and not said
    gap = list(grammar.gap)
    if grammar.closing is not None and (grammar.opening is None or said[:1] == [grammar.opening]):
        if grammar.closing not in said:
            return every
        said = said[said.index(grammar.closing) + 1 :]
        if said[:1] == gap[:1] and gap:
            if len(said) < len(gap):
                return [gap[len(said)]]
            said = said[len(gap) :]
            gap = []
    else:
        gap = []
    matcher = compiled(_tree(vocabulary), grammar)
    goes_on = all(matcher.consume_token(token) for token in said)
    found = [token for token in every if goes_on and matcher.deep_copy().consume_token(token)]
    if begins_answer:
        found.append(grammar.opening or 0)
    if gap and not said:
        found.append(gap[0])
    return sorted(set(found)) or list(vocabulary.eos_ids)


@cache
def _tree(vocabulary: Vocabulary) -> Any:
    return token_tree(vocabulary)
