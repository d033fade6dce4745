"""Answers under a grammar. Forced text is drafted unless node or request forbids it. Drafts of a
prediction or the tree are computed only as far as the grammar allows. The answer is the same as
without drafts."""

import time
from dataclasses import replace

import numpy as np
import pytest

from tasuki.model.grammar.compiled_grammar import compiled, token_tree
from tasuki.model.grammar.constraint import Constraint
from tasuki.model.grammar.grammar import Grammar, GrammarKind
from tasuki.model.grammar.vocabulary import Vocabulary
from tests.harness.engines import LETTERS, prompt, submit, tiny_engine
from tests.harness.scripted_drafts import DRAWN, NEW, answered, assert_same

KEYS = Grammar(GrammarKind.REGEX, "(celsius: [0-9], fahrenheit: [0-9]; ){9}")
SAMPLING = replace(DRAWN, grammar=KEYS, stop_token_ids=(127,))
TOKENS = prompt(70)


def constraint(grammar: Grammar) -> Constraint:
    tree = token_tree(LETTERS)
    return Constraint(compiled(tree, grammar).deep_copy(), grammar, (127,), LETTERS.tokens)


def test_what_has_to_come_is_known_where_the_grammar_holds() -> None:
    held = constraint(KEYS)
    assert bytes(held.forced(20)) == b"celsius: " and bytes(held.forced(3)) == b"cel"
    assert held.allowed(list(b"celsius: 4, fahr")) == 16
    assert held.allowed(list(b"celsius: x")) == 9
    for token in b"celsius: ":
        held.append(token)
    assert not held.forced(4) and held.allowed(list(b"7, f")) == 4
    held.append(ord("x"))
    assert held.failed and not held.forced(4) and not held.allowed([ord("7")])
    thinking = constraint(replace(KEYS, opening=1, closing=2))
    assert not thinking.forced(4) and thinking.allowed([1, 99]) == 2
    for token in (1, 99, 2):
        thinking.append(token)
    assert bytes(thinking.forced(20)) == b"celsius: "


@pytest.mark.parametrize(
    ("pattern", "words"),
    [
        ("celsius[0-9]", ["cels", "ius"]),
        ("celsius|celery", ["cel"]),
        ("abcd", ["abcd"]),
        ("abcd?", ["abcd"]),
        ("a(b|x)", ["ab"]),
    ],
)
def test_forced_text_is_of_the_longest_tokens_that_every_way_has(
    pattern: str, words: list[str]
) -> None:
    longer = ["ce", "cel", "cels", "celer", "ius", "iu", "ab", "abc", "abcd", "us0", "s0"]
    tokens = (*LETTERS.tokens, *(word.encode() for word in longer))
    vocabulary = Vocabulary(tokens, LETTERS.eos_ids)
    grammar = Grammar(GrammarKind.REGEX, pattern)
    # After the shorter of two tokens there may be a choice not visible in the tokens.
    matcher = compiled(token_tree(vocabulary), grammar).deep_copy()
    held = Constraint(matcher, grammar, LETTERS.eos_ids, tokens)
    found = [tokens[token].decode() for token in held.forced(5)]
    assert found == words


def test_text_without_end_is_looked_at_as_far_as_it_is_drafted() -> None:
    """All of the text would take 0.8 s, for so small a request."""
    endless = constraint(Grammar(GrammarKind.REGEX, "a{200000}"))
    began = time.process_time()
    for _ in range(20):
        assert endless.forced(4) == [ord("a")] * 4
    assert time.process_time() - began < 0.5


@pytest.mark.parametrize("speculate", ["prediction", "tree"])
@pytest.mark.parametrize("most", [1, 3, 7])
def test_keys_are_drafted_and_change_nothing(speculate: str, most: int) -> None:
    plain = tiny_engine(speculate="off")
    engine = tiny_engine(speculate=speculate, draft_tokens=most)
    answered(plain, TOKENS, SAMPLING)
    answered(engine, TOKENS, SAMPLING)
    usage = engine.finished("r").usage
    forced = {use.source: use for use in usage.drafts}["grammar"]
    assert sum(forced.drafted) == sum(forced.accepted)
    # Two of 30 letters are sampled freely; the first is sampled before any draft.
    assert usage.accepted_tokens >= (NEW - 3) * most // (most + 1) - 2
    assert usage.accepted_prediction_tokens is None
    assert_same(engine, plain, TOKENS)


def test_of_a_prediction_only_what_is_allowed_is_computed() -> None:
    plain, engine = tiny_engine(speculate="off"), tiny_engine(draft_tokens=4)
    answer = np.array([token.token for token in answered(plain, TOKENS, SAMPLING)], dtype=np.int32)
    wrong = answer.copy()
    wrong[3:9] = ord("#")
    engine.post(submit("r", TOKENS, NEW, sampling=SAMPLING, prediction=wrong))
    engine.run()
    assert engine.tokens("r") == answer.tolist()
    usage = engine.finished("r").usage
    assert usage.rejected_prediction_tokens == 0 and usage.accepted_prediction_tokens > 10
    assert sum(use.source == "grammar" for use in usage.drafts) == 1
    assert_same(engine, plain, TOKENS)


def test_nothing_is_drafted_where_nothing_is_to_be() -> None:
    engine = tiny_engine(speculate="off")
    answered(engine, TOKENS, SAMPLING)
    assert not engine.finished("r").usage.drafts
