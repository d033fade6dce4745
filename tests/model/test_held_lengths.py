"""A string's length is enforced as far as a lexer counts. A greater limit is rejected by its
keyword and place. A lexer used up by one answer ends no other answer."""

import json
from typing import Any

import pytest

from tasuki.model.grammar import grammar_compiler
from tasuki.model.grammar.constraint import Constraint, allows
from tasuki.model.grammar.grammar import Grammar, GrammarError, GrammarKind
from tasuki.model.grammar.grammar_compiler import GrammarCompiler
from tasuki.model.grammar.held_schema import MOST_HELD_LETTERS, held_schema
from tasuki.model.grammar.trials.client import GrammarTrials
from tasuki.model.grammar.vocabulary import Vocabulary
from tasuki.server.errors import InvalidField
from tasuki.server.text.grammars.call_grammar import CallGrammar, OfferedTool
from tests.harness.trial_stand_ins import OBEYS

END = 256
BYTES = Vocabulary((*(bytes([byte]) for byte in range(256)), b""), (END,))
# One answer creates about nine states of such a lexer per letter.
LONG = {"type": "string", "maxLength": 4000}


def of_schema(schema: dict[str, Any]) -> Grammar:
    return Grammar(GrammarKind.JSON_SCHEMA, json.dumps(schema))


def of_call(parameters: dict[str, Any], *, in_tags: bool) -> Grammar:
    tool = OfferedTool({"type": "function", "function": {"name": "f", "parameters": parameters}})
    asked = CallGrammar("tools", [tool], in_tags, many=False).forced()
    return Grammar(asked.kind, asked.source)


def written(constraint: Constraint, text: str) -> int:
    """Return the number of its letters allowed by the masks, each checked before it is written."""
    for place, byte in enumerate(text.encode()):
        mask = constraint.mask()
        if mask is None or not allows(mask, byte):
            return place
        constraint.append(byte)
    return len(text)


@pytest.mark.parametrize(
    ("grammar", "before"),
    [
        (of_schema({"type": "string", "maxLength": MOST_HELD_LETTERS}), '"'),
        (
            of_call({"properties": {"a": {**LONG, "maxLength": MOST_HELD_LETTERS}}}, in_tags=True),
            "<tool_call>\n<function=f>\n<parameter=a>\n",
        ),
    ],
    ids=["json", "tags"],
)
def test_the_longest_string_that_is_held_can_be_written(grammar: Grammar, before: str) -> None:
    constraint = GrammarCompiler(BYTES).constraint(grammar, ())
    text = before + "a" * (MOST_HELD_LETTERS + 1)
    assert written(constraint, text) == len(text) - 1
    assert not constraint.failed


def test_a_lexer_that_an_answer_has_spent_ends_no_other() -> None:
    grammars, grammar = GrammarCompiler(BYTES), of_schema(LONG)
    waiting = grammars.constraint(grammar, ())
    text = '"' + "a" * 4000 + '"'
    for constraint in (grammars.constraint(grammar, ()), waiting, grammars.constraint(grammar, ())):
        assert written(constraint, text) == len(text)
        mask = constraint.mask()
        assert not constraint.failed and mask is not None and allows(mask, END)


def test_a_slow_grammar_with_a_spent_lexer_is_compiled_again_for_the_next_request(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(grammar_compiler, "_QUICK_SECONDS", -1.0)
    grammars = GrammarCompiler(BYTES, trials=GrammarTrials.of(BYTES, OBEYS))
    grammar, text = of_schema(LONG), '"' + "a" * 1500
    assert not grammars.ready(grammar)
    grammars.wait()
    assert grammars.ready(grammar)
    # It ends as a prefix of a text, while another answer runs.
    spent = grammars.constraint(grammar, ())
    assert written(spent, '"' + "a" * 4000) < 4000 and spent.failed
    # Begins the compilation; a quick one has ended by then.
    grammars.ready(grammar)
    grammars.wait()
    assert grammars.ready(grammar)
    assert written(grammars.constraint(grammar, ()), text) == len(text)


@pytest.mark.parametrize("keyword", ["minLength", "maxLength"])
@pytest.mark.parametrize("length", [MOST_HELD_LETTERS + 1, 30_000, 1e20, 10**30])
def test_a_length_that_no_lexer_counts_is_refused_by_name_and_place(
    keyword: str, length: float
) -> None:
    schema = {"properties": {"a": {"items": [{}, {"type": ["string", "null"], keyword: length}]}}}
    place = f"{keyword} of properties.a.items.1 is .*at most {MOST_HELD_LETTERS} letters"
    with pytest.raises(GrammarError, match=place):
        held_schema(schema)
    for in_tags in (True, False):
        with pytest.raises(InvalidField, match=f"tools cannot be followed: f: {place}"):
            of_call(schema, in_tags=in_tags)
    with pytest.raises(GrammarError, match=f"{keyword} of the schema is"):
        held_schema({keyword: length})


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "integer", "maxLength": 30_000},
        {"type": 5, "maxLength": 30_000},
        {"type": "string", "maxLength": True},
        {"const": {"maxLength": 30_000}},
        {"properties": {"maxLength": {"type": "string"}}},
        {"type": "string", "maxLength": MOST_HELD_LETTERS},
    ],
)
def test_other_lengths_are_left_to_the_compiler(schema: dict[str, Any]) -> None:
    assert held_schema(schema)


def test_an_odd_name_is_not_shown() -> None:
    with pytest.raises(GrammarError, match=r"maxLength of properties\.\? is"):
        held_schema({"properties": {"a\n": {"maxLength": 10**6}}})


@pytest.mark.parametrize("length", [2049, 8000])
def test_a_length_that_is_too_much_between_tags_is_refused_by_name(length: int) -> None:
    parameters = {"properties": {"a": {"type": "string", "minLength": length}}}
    with pytest.raises(InvalidField, match=rf"minLength of f\.a is {length}: between tags"):
        of_call(parameters, in_tags=True)
    GrammarCompiler(BYTES).constraint(of_call(parameters, in_tags=False), ())


def test_work_of_lengths_together_is_named_without_an_expression() -> None:
    text = {"type": "string", "minLength": 2000, "maxLength": 8000}
    parameters = {"properties": {"a": text, "b": {**text, "maxLength": 8001}}}
    with pytest.raises(GrammarError, match="lengths and patterns of its strings take too much"):
        GrammarCompiler(BYTES).constraint(of_call(parameters, in_tags=True), ())
