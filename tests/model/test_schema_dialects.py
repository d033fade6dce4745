"""Schemas as callers write them: keywords without a constraint are accepted, and patterns are
ECMA-262's."""

import json
from typing import Any

import pytest

from tasuki.model.grammar.constraint import allows
from tasuki.model.grammar.grammar import Grammar, GrammarError, GrammarKind
from tasuki.model.grammar.grammar_compiler import GrammarCompiler
from tasuki.model.grammar.vocabulary import Vocabulary

END = 256
BYTES = Vocabulary((*(bytes([byte]) for byte in range(256)), b""), (END,))
NUMBER = {"type": "number"}


@pytest.fixture(scope="module")
def grammars() -> GrammarCompiler:
    return GrammarCompiler(BYTES)


def follows(grammars: GrammarCompiler, schema: dict[str, Any], value: Any) -> bool:
    grammar = Grammar(GrammarKind.JSON_SCHEMA, json.dumps(schema))
    text = json.dumps(value, ensure_ascii=False).encode()
    constraint = grammars.constraint(grammar, ())
    if constraint.allowed([*text]) < len(text):
        return False
    for byte in text:
        constraint.append(byte)
    mask = constraint.mask()
    return mask is not None and allows(mask, END)


def found(grammars: GrammarCompiler, pattern: str, letters: str) -> str:
    """Return the letters that the pattern accepts."""
    schema = {"type": "string", "pattern": pattern}
    return "".join(letter for letter in letters if follows(grammars, schema, letter))


@pytest.mark.parametrize(
    "keywords",
    [
        {"uniqueItems": False},
        {"minContains": 1, "maxContains": 2},
        {"contains": {"type": "null"}, "minContains": 0},
        {"then": False, "else": False},
        {"if": {"type": "null"}},
        {"unevaluatedProperties": True, "unevaluatedItems": {}},
        {"dependentRequired": {}},
        {"dependentRequired": {"a": []}, "dependentSchemas": {"a": True}},
        {"not": False},
        {"propertyNames": True},
        {"propertyNames": {"type": "string", "description": "a"}},
        {"$dynamicAnchor": "node"},
        {"type": ["array", "null"], "minItems": 1.0},
    ],
    ids=str,
)
def test_keywords_that_constrain_nothing_are_taken(
    grammars: GrammarCompiler, keywords: dict[str, Any]
) -> None:
    assert follows(grammars, {"type": ["array", "object"], **keywords}, [1])


@pytest.mark.parametrize(
    ("schema", "valid", "invalid"),
    [
        ({"propertyNames": {"enum": ["a", "b"]}}, {"a": 1}, {"c": 1}),
        ({"propertyNames": {"const": "a"}}, {"a": 1}, {"b": 1}),
        ({"propertyNames": {"pattern": r"^\w$"}}, {"a": 1}, {"é": 1}),
        (
            {"patternProperties": {r"^\w+$": NUMBER}, "additionalProperties": False},
            {"a": 1},
            {"é": 1},
        ),
        (
            {"propertyNames": {"enum": ["a"]}, "properties": {"a": NUMBER, "b": NUMBER}},
            {"a": 1},
            {"b": 1},
        ),
        ({"unevaluatedProperties": False, "properties": {"a": {}}}, {"a": 1}, {"b": 1}),
        (
            {
                "unevaluatedProperties": False,
                "additionalProperties": False,
                "properties": {"a": {}},
            },
            {"a": 1},
            {"b": 1},
        ),
    ],
    ids=str,
)
def test_keywords_that_another_can_say_are_held(
    grammars: GrammarCompiler, schema: dict[str, Any], valid: Any, invalid: Any
) -> None:
    schema = {"type": "object", "additionalProperties": NUMBER, **schema}
    if "unevaluatedProperties" in schema and schema["additionalProperties"] == NUMBER:
        del schema["additionalProperties"]
    assert follows(grammars, schema, valid) and not follows(grammars, schema, invalid)


def test_siblings_of_a_reference_mean_nothing_up_to_draft_7(grammars: GrammarCompiler) -> None:
    schema = {"definitions": {"a": {"enum": ["yes"]}}, "$ref": "#/definitions/a", "maxLength": 2}
    old = {"$schema": "http://json-schema.org/draft-07/schema#", **schema}
    assert follows(grammars, old, "yes")
    with pytest.raises(GrammarError):
        follows(grammars, schema, "yes")


@pytest.mark.parametrize(
    ("pattern", "letters", "taken"),
    [
        (r"^\d$", "1٣a", "1"),
        (r"^\D$", "1٣a", "٣a"),
        (r"^\w$", "a_é中", "a_"),
        (r"^[\W]$", "a_é中-", "é中-"),
        (r"^\s$", " \u00a0\ufeff\u0085", " \u00a0\ufeff"),
        (r"^[^\s]$", "a \ufeff\u0085", "a\u0085"),
        ("^.$", "a\r\n\u2028", "a"),
        ("^[^A-Za-z&&x]$", "aIW&1", "1"),
        ("^[a~~b]$", "ab~c", "ab~"),
        ("^[+--]$", "+,-.", "+,-"),
        ("^[a-z-9]$", "b-95", "b-9"),
        (r"^[^[\]]$", "[]a", "a"),
        (r"^[^\x00-\x1f]$", "a ", "a "),
        (r"^\u0041|\u{42}$", "ABC", "AB"),
        (r"^\ud83d\ude00$", "😀a", "😀"),
        (r"^\<$", "<a", "<"),
        (r"^(?<name>a){1,2}?$", "ab", "a"),
        ("^}|]$", "}]a", "}]"),
    ],
)
def test_a_pattern_is_read_as_ecma_262_reads_it(
    grammars: GrammarCompiler, pattern: str, letters: str, taken: str
) -> None:
    assert found(grammars, pattern, letters) == taken


def test_brackets_in_brackets_are_letters(grammars: GrammarCompiler) -> None:
    for pattern, texts in (("^[[ab]]$", "a] b] []"), ("^[a-z&&[^b]]$", "a] &] [] ^]")):
        schema = {"type": "string", "pattern": pattern}
        assert all(follows(grammars, schema, text) for text in texts.split())
        assert not any(follows(grammars, schema, text) for text in ("a", "b", "c", "]"))


@pytest.mark.parametrize(
    ("pattern", "complaint"),
    [
        ("a(?=b)", "letter 2 .* look-around"),
        ("(?<!a)b", "letter 1 .* look-around"),
        (r"(a)\1", "letter 4 .* references to groups"),
        (r"a\b", "letter 2 .* word boundaries"),
        ("a++", r"letter 2 .* \+\+ is no quantifier"),
        ("a|*", "letter 3 .* nothing to repeat"),
        ("a{,3}", "letter 2 .* two ways"),
        ("[]a]", "letter 1 .* two ways"),
        (r"[\w-.]", "letter 4 .* two ways"),
        (r"[a-\d]", "letter 4 .* range"),
        ("[z-a]", "letter 4 .* range"),
        ("b[a", r"letter 2 .* \[ has no end"),
        ("(?s)a", "letter 1 .* flags"),
        (r"\Aa", "letter 1 .* no escape"),
        (r"a\x01b", "letter 2 .* control characters"),
        (r"a[\x01]b", "letter 2 .* control characters"),
    ],
)
def test_what_is_no_pattern_here_is_refused_by_its_place(
    grammars: GrammarCompiler, pattern: str, complaint: str
) -> None:
    with pytest.raises(GrammarError, match=complaint):
        follows(grammars, {"type": "string", "pattern": pattern}, "a")


def test_a_format_that_is_unknown_is_an_annotation(grammars: GrammarCompiler) -> None:
    schema = {"type": "string", "format": "starts_with", "pattern": "^a\\/b.*"}
    assert follows(grammars, schema, "a/bc") and not follows(grammars, schema, "b/bc")


@pytest.mark.parametrize(
    ("schema", "way_out"),
    [
        ({"oneOf": [{"type": "integer"}, {"type": "number"}]}, "write anyOf"),
        (
            {"type": "object", "properties": {"a": NUMBER}, "minProperties": 1},
            "additionalProperties is false",
        ),
        ({"not": {"type": "string"}}, r"leave them out: \[\"not\"\]"),
    ],
    ids=str,
)
def test_a_complaint_says_what_a_caller_can_do(
    grammars: GrammarCompiler, schema: dict[str, Any], way_out: str
) -> None:
    with pytest.raises(GrammarError, match=way_out) as refused:
        follows(grammars, schema, 1)
    assert "coerce" not in str(refused.value)
