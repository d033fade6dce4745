"""Every feature of JSON Schema claimed by llguidance's documentation, the same list as
JSONSchemaBench's. Valid values are accepted and no others, and random samples are valid. Other
features are rejected by name (test_grammar_masks.py)."""

import json
from typing import Any

import jsonschema
import numpy as np
import pytest

from tasuki.model.grammar.constraint import Constraint, allows
from tasuki.model.grammar.grammar import Grammar, GrammarError, GrammarKind
from tasuki.model.grammar.grammar_compiler import GrammarCompiler
from tasuki.model.grammar.vocabulary import Vocabulary

END = 256
BYTES = Vocabulary((*(bytes([byte]) for byte in range(256)), b""), (END,))
A, B = {"const": "a"}, {"const": "b"}
# A schema, valid values, invalid values.
FEATURES: dict[str, tuple[dict[str, Any], list[Any], list[Any]]] = {
    "true": ({}, [None, 1.5, "x", [], {}], []),
    "type": ({"type": "integer"}, [0, -3], [0.5, "0", None]),
    "types": ({"type": ["null", "boolean"]}, [None, True], [0, "null"]),
    "enum": ({"enum": [1, "two", [3], {"a": 4}]}, [1, "two", [3], {"a": 4}], [2, "on", [4]]),
    "const": ({"const": {"a": [1]}}, [{"a": [1]}], [{"a": [2]}, {}]),
    "anyOf": ({"anyOf": [A, {"type": "integer"}]}, ["a", 3], ["b", 3.5]),
    "oneOf": ({"oneOf": [A, {"type": "integer"}]}, ["a", 3], ["b", 3.5]),
    "oneOf by a property": (
        {
            "oneOf": [
                {"properties": {"kind": A, "x": {"type": "integer"}}, "required": ["kind", "x"]},
                {"properties": {"kind": B}, "required": ["kind"]},
            ],
            "type": "object",
        },
        [{"kind": "a", "x": 1}, {"kind": "b"}],
        [{"kind": "a"}, {"kind": "c"}],
    ),
    "allOf": ({"allOf": [{"type": "integer", "minimum": 3}, {"maximum": 5}]}, [3, 5], [2, 6, "4"]),
    "siblings": ({"anyOf": [{"minLength": 2}], "type": "string", "maxLength": 3}, ["ab"], ["a", 3]),
    "$ref": ({"$defs": {"A": A}, "$ref": "#/$defs/A"}, ["a"], ["b"]),
    "definitions": (
        {"definitions": {"A": A}, "items": {"$ref": "#/definitions/A"}},
        [["a"]],
        [["b"]],
    ),
    "$ref to itself": (
        {"type": "object", "properties": {"next": {"$ref": "#"}}, "additionalProperties": False},
        [{}, {"next": {"next": {}}}],
        [{"next": 1}, {"other": {}}],
    ),
    "$anchor": ({"$defs": {"A": {"$anchor": "here", **A}}, "$ref": "#here"}, ["a"], ["b"]),
    "items": ({"type": "array", "items": A}, [[], ["a", "a"]], [["a", "b"], {}]),
    "items of draft 7": (
        {
            "$schema": "http://json-schema.org/draft-07/schema#",
            "type": "array",
            "items": [A, B],
            "additionalItems": False,
        },
        [["a", "b"], ["a"]],
        [["b"], ["a", "b", "c"]],
    ),
    "prefixItems": (
        {"type": "array", "prefixItems": [A, B], "items": {"type": "null"}},
        [["a", "b", None], ["a"]],
        [["b"], ["a", "b", "c"]],
    ),
    "minItems": ({"type": "array", "minItems": 2}, [[1, 2]], [[1], []]),
    "maxItems": ({"type": "array", "maxItems": 1}, [[1], []], [[1, 2]]),
    "properties": (
        {"type": "object", "properties": {"a": A, "b": B}},
        [{}, {"a": "a", "b": "b"}, {"c": 1}],
        [{"a": "b"}],
    ),
    "required": (
        {"type": "object", "properties": {"a": A}, "required": ["a", "z"]},
        [{"a": "a", "z": 1}],
        [{}, {"a": "a"}],
    ),
    "additionalProperties": (
        {"type": "object", "properties": {"a": A}, "additionalProperties": {"type": "null"}},
        [{"a": "a", "x": None}],
        [{"x": 1}],
    ),
    "additionalProperties: false": (
        {"type": "object", "properties": {"a": A}, "additionalProperties": False},
        [{}, {"a": "a"}],
        [{"b": 1}],
    ),
    "patternProperties": (
        {"patternProperties": {"^x": A, "^y": B}, "additionalProperties": False, "type": "object"},
        [{"x1": "a", "y": "b"}],
        [{"x1": "b"}, {"z": 1}],
    ),
    "minProperties": ({"type": "object", "minProperties": 1}, [{"a": 1}, {"a": 1, "b": 2}], [{}]),
    "maxProperties": ({"type": "object", "maxProperties": 1}, [{}, {"a": 1}], [{"a": 1, "b": 2}]),
    "minLength": ({"type": "string", "minLength": 2}, ["ab", "漢字"], ["a", ""]),
    "maxLength": ({"type": "string", "maxLength": 2}, ["", "漢字"], ["abc"]),
    "pattern": ({"type": "string", "pattern": "^[a-c]+$"}, ["abc"], ["", "d"]),
    "pattern, sought": ({"type": "string", "pattern": "[0-9]"}, ["a7b"], ["", "ab"]),
    "minimum": ({"type": "integer", "minimum": -3}, [-3, 12], [-4]),
    "maximum": ({"type": "number", "maximum": 2.5}, [2.5, -9, 2.25], [2.6, 3]),
    "exclusiveMinimum": ({"type": "integer", "exclusiveMinimum": 3}, [4], [3]),
    "exclusiveMaximum": ({"type": "number", "exclusiveMaximum": 3}, [2.75], [3, 3.5]),
    "exclusive bounds of draft 4": (
        {
            "$schema": "http://json-schema.org/draft-04/schema#",
            "type": "integer",
            "minimum": 3,
            "exclusiveMinimum": True,
        },
        [4],
        [3],
    ),
    "multipleOf": ({"type": "integer", "multipleOf": 7}, [0, 14, -21], [13, 1]),
    "multipleOf, of a number": ({"type": "number", "multipleOf": 0.25}, [0.25, 1.75], [0.3]),
    "annotations": ({"type": "null", "title": "t", "default": 1, "x-own": True}, [None], [1]),
}
FORMATS = {
    "date-time": (
        ["2026-11-23T00:30:00Z", "2026-11-23T00:30:00.5+01:00"],
        ["2026-13-23T00:30:00Z"],
    ),
    "time": (["00:30:00Z"], ["25:30:00Z", "noon"]),
    "date": (["2026-02-28", "2028-02-29"], ["2026-02-30", "26-02-01"]),
    "duration": (["P1DT2H", "P3W"], ["1D", "P"]),
    "email": (["a.b@c.example"], ["a.b", "a@b@c"]),
    "hostname": (["a-b.example"], ["-a", "a_b"]),
    "ipv4": (["10.0.0.255"], ["10.0.0.256", "10.0.0"]),
    "ipv6": (["::1", "2001:db8::ff"], ["1::2::3", "g::"]),
    "uuid": (["2eb8aa08-aa98-11ea-b4aa-73b441d16380"], ["2eb8aa08"]),
    "uri": (["https://a.example/b?c#d", "urn:a:b"], ["a b", "//"]),
}
for name, (valid, invalid) in FORMATS.items():
    FEATURES[f"format {name}"] = ({"type": "string", "format": name}, [*valid], [*invalid, 1])


@pytest.fixture(scope="module")
def grammars() -> GrammarCompiler:
    return GrammarCompiler(BYTES)


def following(grammars: GrammarCompiler, schema: dict[str, Any], text: str = "") -> Constraint:
    grammar = Grammar(GrammarKind.JSON_SCHEMA, json.dumps(schema))
    return grammars.constraint(grammar, text.encode())


def is_whole(constraint: Constraint) -> bool:
    mask = constraint.mask()
    return not constraint.failed and mask is not None and allows(mask, END)


@pytest.mark.parametrize("name", FEATURES)
def test_what_is_valid_is_let_through_and_nothing_else(
    grammars: GrammarCompiler, name: str
) -> None:
    schema, valid, invalid = FEATURES[name]
    for values, right in ((valid, True), (invalid, False)):
        for value in values:
            text = json.dumps(value, ensure_ascii=False)
            assert is_whole(following(grammars, schema, text)) is right, text


NAMED = {"type": "object", "properties": {"k": {"type": "integer"}}}
PATTERN = {"type": "object", "patternProperties": {"^k": {"type": "integer"}}}


@pytest.mark.parametrize("schema", [NAMED, PATTERN])
@pytest.mark.parametrize("text", ['{"\\u006b": "x"}', '{"x": 1, "\\u006b": "x"}'])
def test_a_key_cannot_be_written_so_that_its_schema_is_missed(
    grammars: GrammarCompiler, schema: dict[str, Any], text: str
) -> None:
    assert "k" in json.loads(text)
    assert following(grammars, schema, text).failed


@pytest.mark.parametrize("value", ['\n\t\\"\b\f\r/', "漢字 😀"])
def test_constants_are_written_whatever_their_letters(
    grammars: GrammarCompiler, value: str
) -> None:
    assert json.loads(drawn(grammars, {"const": value}, 1)) == value


@pytest.mark.parametrize(
    "schema",
    [
        {"const": "\x1b[0m"},
        {"enum": [{"a": ["\x00"]}]},
        {"properties": {"\x0b": {}}},
        {"const": "\x7f"},
        {"pattern": r"a\x1bb"},
        {"patternProperties": {r"^\\\u{1B}": {}}},
    ],
)
def test_letters_that_no_escape_writes_are_refused(
    grammars: GrammarCompiler, schema: dict[str, Any]
) -> None:
    with pytest.raises(GrammarError, match="control characters"):
        following(grammars, schema)


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object", "minProperties": 2},
        {"properties": {"a": {"minProperties": 3, "required": ["b", "c"]}}},
        {"anyOf": [{"type": "null"}, {"minProperties": 2.0}]},
    ],
)
def test_keys_that_may_repeat_cannot_be_counted(
    grammars: GrammarCompiler, schema: dict[str, Any]
) -> None:
    with pytest.raises(GrammarError, match="minProperties"):
        following(grammars, schema)


def test_other_counts_of_keys_are_held(grammars: GrammarCompiler) -> None:
    pair = {"type": "object", "minProperties": 2, "required": ["a", "b"]}
    assert is_whole(following(grammars, pair, '{"a": 1, "b": 2}'))
    assert following(grammars, pair, '{"a": 1}').failed
    following(grammars, {"const": {"minProperties": 5}})
    following(grammars, {"properties": {"minProperties": {"type": "integer"}}})


def drawn(grammars: GrammarCompiler, schema: dict[str, Any], seed: int, most: int = 400) -> str:
    """Return a random answer that ends as soon as it may; empty if it did not end."""
    rng = np.random.default_rng(seed)
    constraint, said = following(grammars, schema), b""
    while len(said) < most:
        mask = constraint.mask()
        assert mask is not None
        tokens = [token for token in range(END + 1) if allows(mask, token)]
        closing = [token for token in tokens if token in (*b'"}]', END)]
        letters = [token for token in tokens if 32 <= token < 127]
        token = int(rng.choice(closing if closing and rng.random() < 0.5 else letters or tokens))
        if token == END:
            return said.decode()
        said += bytes([token])
        constraint.append(token)
    return ""


@pytest.mark.parametrize("name", FEATURES)
def test_what_is_drawn_at_random_is_valid(grammars: GrammarCompiler, name: str) -> None:
    schema = FEATURES[name][0]
    answers = [drawn(grammars, schema, seed) for seed in range(6)]
    ended = [json.loads(answer) for answer in answers if answer]
    assert ended, answers
    for value in ended:
        jsonschema.validate(value, schema)
