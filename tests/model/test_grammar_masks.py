"""Masks of grammars equal those of naive references, token by token, for every way of appending."""

import json
import sys
import threading
from concurrent.futures import Future
from typing import Any

import numpy as np
import pytest

from tasuki.model.grammar import grammar_compiler
from tasuki.model.grammar.constraint import Constraint, allows, keep_only, rule_out
from tasuki.model.grammar.grammar import (
    MAX_SOURCE_BYTES,
    Grammar,
    GrammarError,
    GrammarKind,
    GrammarsBusy,
    GrammarsUnavailable,
)
from tasuki.model.grammar.grammar_compiler import GrammarCompiler
from tasuki.model.grammar.trials.client import GrammarTrials, outcome_raised
from tasuki.model.grammar.trials.messages import Outcome, Verdict
from tasuki.model.grammar.vocabulary import ALL_BYTES, Vocabulary
from tests.harness.covering import every_value
from tests.harness.trial_stand_ins import OBEYS
from tests.harness.waiting import HANG_SECONDS, until
from tests.model.grammar_twin import naive_tokens


# Grammars tried as on a node, for tests without a node.
def check(trials: GrammarTrials, grammar: Grammar) -> None:
    """Wait for the verdict. Raises as GrammarTrials.check()."""
    verdict = trials.verdict("", grammar.kind, grammar.source)
    outcome_raised(verdict.result(HANG_SECONDS))


# Tokens that cross the boundaries of values, and one of a half character.
WORDS = (b'{"', b'"}', b'":', b", ", b"true", b"null", b"ab", b"\xc3", b"</think>", b"<think>")
SMALL = Vocabulary((*(bytes([byte]) for byte in range(256)), *WORDS, b"", b""), (266, 267))
CLOSING, OPENING = 256 + WORDS.index(b"</think>"), 256 + WORDS.index(b"<think>")
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 4},
        "kind": {"enum": ["a", "ab", True, None]},
        "more": {"type": "array", "items": {"type": "integer"}, "maxItems": 2},
    },
    "required": ["name", "kind"],
    "additionalProperties": False,
}
GRAMMARS = {
    "schema": Grammar(GrammarKind.JSON_SCHEMA, json.dumps(SCHEMA)),
    "regex": Grammar(GrammarKind.REGEX, "(ab|true|[0-9]{1,3})+é?"),
    "lark": Grammar(GrammarKind.LARK, 'start: "x" (part ", ")* "."\npart: /[a-f]+/ | start'),
    "gbnf": Grammar(GrammarKind.LARK, 'root ::= "a" more*\nmore ::= [0-9] | "b" root "c"'),
}
KINDS = {
    "plain": {},
    "behind thinking": {"closing": CLOSING},
    "behind thinking and a gap": {"closing": CLOSING, "gap": (10, 10)},
    "thinking or not": {"closing": CLOSING, "opening": OPENING, "gap": (10, 10)},
}


@pytest.fixture(scope="module")
def trials() -> GrammarTrials:
    return GrammarTrials.of(ALL_BYTES)


def compiler(vocabulary: Vocabulary = SMALL, **terms: int) -> GrammarCompiler:
    made = GrammarCompiler(vocabulary, **terms)
    made.prepare()
    return made


def allowed(constraint: Constraint, vocabulary: Vocabulary = SMALL) -> list[int]:
    mask = constraint.mask()
    every = range(len(vocabulary.tokens))
    return [token for token in every if mask is None or allows(mask, token)]


@every_value(name={name: name for name in GRAMMARS}, kind={kind: kind for kind in KINDS})
def test_every_mask_is_that_of_trying_every_token(name: str, kind: str) -> None:
    base = GRAMMARS[name]
    grammar = Grammar(base.kind, base.source, **KINDS[kind])  # type: ignore[arg-type]
    grammars, rng = compiler(), np.random.default_rng(16)
    made = grammars.constraint(grammar, ())
    said: list[int] = []
    for step in range(8):
        tokens = allowed(made)
        assert tokens == naive_tokens(grammar, SMALL, said), (said, step)
        assert allowed(grammars.constraint(grammar, said)) == tokens, "derived from the tokens"
        ends = [token for token in (CLOSING, 10) if token in tokens and rng.random() < 0.4]
        token = int(rng.choice(ends or tokens))
        if token in SMALL.eos_ids and len(tokens) == len(SMALL.eos_ids):
            break
        said.append(token)
        made.append(token)


def test_a_finite_language_s_masks_are_the_beginnings_of_its_texts() -> None:
    """The reference does not use llguidance."""
    texts = ["a", "ab", "abx", "true", "trueab", "né", "null, null"]
    grammar = Grammar(GrammarKind.REGEX, "|".join(texts))
    grammars = compiler()
    beginnings = [b""]
    while beginnings:
        before = beginnings.pop()
        made = grammars.constraint(grammar, before)
        goes_on = [
            token
            for token, added in enumerate(SMALL.tokens)
            if added and any(text.encode().startswith(before + added) for text in texts)
        ]
        ends = list(SMALL.eos_ids) if before.decode(errors="replace") in texts else []
        assert allowed(made) == goes_on + ends
        beginnings += [before + SMALL.tokens[token] for token in goes_on if token < 256]


def test_nothing_but_an_end_token_is_allowed_where_nothing_else_is() -> None:
    grammars = compiler()
    made = grammars.constraint(GRAMMARS["regex"], b"ab")
    made.append(ord("?"))
    assert made.failed
    assert allowed(made) == list(SMALL.eos_ids)


def test_what_else_a_request_asks_for_gives_way_to_the_grammar() -> None:
    mask = np.zeros(9, dtype=np.int32)
    mask.view(np.uint32)[[0, 8]] = [0x8000_0001, 3]
    tokens = {0, 31, 256, 257}
    assert [token for token in range(288) if allows(mask, token)] == sorted(tokens)
    assert [t for t in range(288) if allows(rule_out(mask, {31, 40}), t)] == [0, 256, 257]
    assert (rule_out(mask, tokens) == mask).all()
    assert [t for t in range(288) if allows(keep_only(mask, {31, 40}), t)] == [31]
    assert (keep_only(mask, {40}) == mask).all()


@pytest.mark.parametrize(
    ("keyword", "schema"),
    [
        ("uniqueItems", {"type": "array", "uniqueItems": True}),
        ("not", {"not": {"type": "string"}}),
        ("if", {"if": {}, "then": {}}),
        ("contains", {"contains": {}}),
        ("propertyNames", {"propertyNames": {"maxLength": 3}}),
        ("dependentRequired", {"dependentRequired": {"a": ["b"]}}),
        ("oneOf", {"oneOf": [{"type": "string"}, {"maxLength": 3}]}),
        ("uniqueItems", {"uniqueItems": True, "x-guidance": {"lenient": True}}),
        ("look-around", {"type": "string", "pattern": "(?=a)b"}),
        ("http://elsewhere/schema", {"$ref": "http://elsewhere/schema"}),
        ("Unsatisfiable", {"type": "array", "items": False, "minItems": 1}),
    ],
)
def test_a_keyword_that_no_mask_enforces_is_named(
    trials: GrammarTrials, keyword: str, schema: object
) -> None:
    with pytest.raises(GrammarError) as refused:
        check(trials, Grammar(GrammarKind.JSON_SCHEMA, json.dumps(schema)))
    assert keyword in str(refused.value)
    assert "x-guidance" not in str(refused.value)


def _nested(levels: int) -> object:
    schema: object = {"type": "string"}
    for _ in range(levels):
        schema = {"anyOf": [schema, {"type": "array", "items": schema}]}
    return schema


def _refs(length: int) -> object:
    defs: dict[str, object] = {
        f"a{i}": {"items": {"$ref": f"#/$defs/a{i + 1}"}} for i in range(length)
    }
    return {"$defs": {**defs, f"a{length}": {}}, "$ref": "#/$defs/a0"}


ATTACKS = {
    "parentheses": Grammar(GrammarKind.LARK, "start: " + "(" * 60_000 + '"a"' + ")" * 60_000),
    "parentheses in a regex": Grammar(GrammarKind.REGEX, "(" * 60_000 + "a" + ")" * 60_000),
    "a schema that doubles": Grammar(GrammarKind.JSON_SCHEMA, json.dumps(_nested(11))),
    "references": Grammar(GrammarKind.JSON_SCHEMA, json.dumps(_refs(4000))),
    "a huge enum": Grammar(
        GrammarKind.JSON_SCHEMA, json.dumps({"enum": [f"{i:x}" * 3 for i in range(15_000)]})
    ),
    "a multiple": Grammar(GrammarKind.JSON_SCHEMA, '{"type":"integer","multipleOf":999999937}'),
    "repetitions": Grammar(GrammarKind.REGEX, "((((a{1,99}){1,99}){1,99}){1,99})" * 20),
    "a set that is exponential": Grammar(GrammarKind.REGEX, "(.*a.{18}|.*b.{17}c)" * 3),
    "a loop": Grammar(GrammarKind.JSON_SCHEMA, '{"allOf":[{"$ref":"#"},{"type":"object"}]}'),
    "no JSON": Grammar(GrammarKind.JSON_SCHEMA, "[" * 100_000),
}


@pytest.mark.parametrize("name", ATTACKS)
def test_a_hostile_grammar_is_refused_or_answers_and_the_process_lives(
    trials: GrammarTrials, name: str
) -> None:
    grammars = compiler()
    try:
        check(trials, ATTACKS[name])
        made = grammars.constraint(ATTACKS[name], ())
    except GrammarError as error:
        assert 0 < len(str(error)) < 1000
        return
    rng = np.random.default_rng(1)
    for _ in range(40):
        tokens = allowed(made)
        assert tokens
        made.append(int(rng.choice(tokens)))


@pytest.mark.parametrize("name", ["a loop", "no JSON", "parentheses"])
def test_of_the_hostile_ones_these_are_refused(trials: GrammarTrials, name: str) -> None:
    with pytest.raises(GrammarError) as first:
        check(trials, ATTACKS[name])
    with pytest.raises(GrammarError) as again:
        check(trials, ATTACKS[name])
    assert str(first.value) == str(again.value)


@pytest.mark.parametrize(
    ("kind", "source"),
    [
        ("json_schema", '{"$defs": {"a": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"}'),
        ("json_schema", '{"allOf": [{"$ref": "#"}]}'),
        ("regex", r"[^\s\S]"),
        ("lark", "start: A\nA: /a/ & /b/"),
    ],
)
def test_what_no_text_follows_is_refused(trials: GrammarTrials, kind: str, source: str) -> None:
    with pytest.raises(GrammarError, match=r"no text follows it|Unsatisfiable|empty"):
        check(trials, Grammar(GrammarKind(kind), source))


def test_a_rule_s_temperature_is_refused_and_other_options_are_not(
    trials: GrammarTrials,
) -> None:
    for options in ("temperature=0.5", "max_tokens=3, temperature = 1"):
        with pytest.raises(GrammarError, match="temperature"):
            check(trials, Grammar(GrammarKind.LARK, f"start: x\nx[{options}]: /[a-z]{{3}}/"))
    check(trials, Grammar(GrammarKind.LARK, 'start: x "[temperature=2]"\nx[lazy]: /[a-z]+;/'))


def test_a_source_that_is_too_long_is_no_grammar() -> None:
    Grammar(GrammarKind.REGEX, "a" * MAX_SOURCE_BYTES)
    with pytest.raises(ValueError, match=r"^grammar must have at most 262144 bytes, not 262145"):
        Grammar(GrammarKind.REGEX, "a" * (MAX_SOURCE_BYTES + 1))


def test_what_is_kept_of_grammars_is_bounded_and_compiled_again() -> None:
    grammars = compiler(cache_bytes=600 << 10)
    made = [Grammar(GrammarKind.REGEX, f"a{{{count}}}b") for count in range(1, 6)]
    for _ in range(2):
        for count, grammar in enumerate(made, 1):
            assert allowed(grammars.constraint(grammar, b"a" * count)) == [ord("b")]
    assert grammars.kept == 2


def test_a_grammar_is_ready_once_its_thread_has_compiled_it() -> None:
    grammars = compiler()
    grammar = GRAMMARS["schema"]
    assert not grammars.ready(grammar)
    grammars.wait()
    assert grammars.ready(grammar) and not grammars.compiling
    bad = Grammar(GrammarKind.REGEX, "(a")
    assert not grammars.ready(bad)
    grammars.wait()
    with pytest.raises(GrammarError, match="unclosed group"):
        grammars.ready(bad)


def test_a_grammar_without_a_request_is_given_up() -> None:
    grammars = compiler()
    left, wanted = GRAMMARS["schema"], GRAMMARS["regex"]
    for grammar in (left, wanted):
        assert not grammars.ready(grammar, "ann")
    grammars.wait()
    grammars.retain([("ann", wanted), ("bob", left)])
    assert grammars.held == 1
    assert grammars.ready(wanted, "ann") and not grammars.compiling
    assert not grammars.ready(left, "ann") and grammars.compiling


def test_a_trial_without_a_request_is_cancelled() -> None:
    grammars = GrammarCompiler(SMALL, trials=GrammarTrials.of(SMALL, OBEYS))
    assert not grammars.ready(Grammar(GrammarKind.REGEX, "sleep"), "ann")
    assert grammars.compiling
    grammars.retain([])
    assert not grammars.held and not grammars.compiling


def test_trials_end_with_a_reason_when_they_are_given_up() -> None:
    grammars = GrammarCompiler(SMALL, trials=GrammarTrials.of(SMALL, OBEYS))
    slow = Grammar(GrammarKind.REGEX, "sleep")
    assert not grammars.ready(slow, "ann")
    grammars.give_up("this node is draining")
    with pytest.raises(GrammarsBusy, match="draining"):
        grammars.ready(slow, "ann")
    assert not grammars.held


def test_a_grammar_in_use_is_not_dropped_for_others() -> None:
    grammars = compiler(cache_bytes=600 << 10)
    used = Grammar(GrammarKind.REGEX, "a{9}b")
    until(lambda: grammars.ready(used, "ann"), lambda: "it is never compiled")
    for count in range(1, 6):
        other = Grammar(GrammarKind.REGEX, f"a{{{count}}}b")
        until(lambda other=other: grammars.ready(other, "bob"), lambda: "it is never compiled")
        grammars.retain([("ann", used)])
    assert grammars.ready(used, "cat"), "it would be compiled again"
    assert grammars.held == 0


def _passed(held_bytes: int) -> "Future[Verdict]":
    made: Future[Verdict] = Future()
    made.set_result(Verdict(Outcome.PASSED, held_bytes=held_bytes))
    return made


def test_a_kept_grammar_counts_for_the_memory_that_its_trial_measured(
    trials: GrammarTrials, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = "|".join(f"word{number}" for number in range(10_000))
    large = Grammar(GrammarKind.REGEX, words)
    measured = trials.verdict("", large.kind, large.source).result(HANG_SECONDS).held_bytes
    by_letters = len(words) * 64 + (256 << 10)
    told = GrammarTrials.of(SMALL)
    grammars = GrammarCompiler(SMALL, cache_bytes=4 * by_letters, trials=told)
    monkeypatch.setattr(told, "verdict", lambda *_: _passed(8 * by_letters))
    until(lambda: grammars.ready(large, "ann"), lambda: "it is never compiled")
    assert grammars.kept == 0, "by its letters it would fit"
    assert measured > 1 << 20


def test_a_caller_s_grammars_wait_for_no_other_s(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ann's first is compiled until the test ends; bob's is ready meanwhile."""
    over = threading.Event()
    compile_it = grammar_compiler.compiled

    def slow(tree: Any, grammar: Grammar) -> Any:
        if grammar.kind is GrammarKind.LARK:
            assert over.wait(HANG_SECONDS)
        return compile_it(tree, grammar)

    monkeypatch.setattr(grammar_compiler, "compiled", slow)
    grammars = compiler()
    for number in range(3):
        assert not grammars.ready(Grammar(GrammarKind.LARK, f'start: "{number}"'), "ann")
    try:
        until(lambda: grammars.ready(GRAMMARS["regex"], "bob"), lambda: "bob waits for ann")
        assert grammars.compiling
    finally:
        over.set()


def test_without_tokens_or_without_the_library_it_is_said_what_is_missing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(GrammarsUnavailable, match=r"byte-level tokenizer\.json"):
        compiler_of_none = GrammarCompiler(None)
        compiler_of_none.ready(GRAMMARS["regex"])
    monkeypatch.setitem(sys.modules, "llguidance", None)
    with pytest.raises(GrammarsUnavailable, match="package llguidance"):
        compiler().ready(GRAMMARS["regex"])
