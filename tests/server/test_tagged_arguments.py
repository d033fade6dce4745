"""Tests of arguments between tags under the whole of a tool's schema. Text the grammar allows is
read as arguments jsonschema finds valid. Valid arguments are allowed if they can be written at
all."""

import json
import random
import time
from functools import partial
from typing import Any

import jsonschema
import pytest

from tasuki.model.grammar.constraint import allows
from tasuki.model.grammar.grammar import Grammar, GrammarError
from tasuki.model.grammar.held_schema import MOST_HELD_LETTERS
from tasuki.server.errors import InvalidField
from tasuki.server.text.grammars.call_grammar import CallGrammar, OfferedTool
from tasuki.server.text.parsing.answer_parser import AnswerParser
from tasuki.server.text.parsing.parameter_types import (
    ANY,
    ParameterTypes,
    json_types,
    parameter_schemas,
)
from tasuki.server.text.text_answer import CallArguments, Piece, Thinking
from tests.harness.answer_pieces import BY_ITSELF
from tests.harness.byte_grammars import byte_compiler, follows, tagged_call

# A warning of Python's own parser of patterns.
pytestmark = pytest.mark.filterwarnings("ignore:Possible (set|nested):FutureWarning")
STRING = {"type": "string"}
call = partial(tagged_call, "f")


def grammar_of(parameters: dict[str, Any], *, in_tags: bool = True) -> Grammar:
    """Return the grammar of one forced call of f. Raise InvalidField."""
    tool = {"type": "function", "function": {"name": "f", "parameters": parameters}}
    asked = CallGrammar("tool_choice", [OfferedTool(tool)], in_tags, many=False).forced()
    return Grammar(asked.kind, asked.source)


def read(parameters: dict[str, Any], text: str) -> Any:
    tool = {"type": "function", "function": {"name": "f", "parameters": parameters}}
    parser = AnswerParser(Thinking.NEVER, [tool])
    items = [*parser.push(Piece(text, None)), *parser.finish(BY_ITSELF)]
    return json.loads("".join(item.json for item in items if isinstance(item, CallArguments)))


def accepted(parameters: dict[str, Any], text: str) -> bool:
    """Return true if the grammar takes the call; raise an error if a taken call is invalid."""
    if not follows(grammar_of(parameters), text):
        return False
    jsonschema.validate(read(parameters, text), parameters)
    return True


def required(schema: dict[str, Any]) -> dict[str, Any]:
    definitions = {"$defs": {"E": {"enum": ["red", "blue"], "type": "string"}}}
    return {"type": "object", **definitions, "properties": {"a": schema}, "required": ["a"]}


A = {"type": "object", "properties": {"a": STRING}, "required": ["a"]}
B = {"type": "object", "properties": {"b": STRING}, "required": ["b"]}
AB = {"type": "object", "properties": {"a": STRING, "b": STRING}}
NONE, ONLY_A, ONLY_B, BOTH = call(), call(a="x"), call(b="y"), call(a="x", b="y")


@pytest.mark.parametrize(
    ("parameters", "valid"),
    [
        ({"$defs": {"T": A}, "$ref": "#/$defs/T"}, [ONLY_A]),
        ({"anyOf": [A, B]}, [ONLY_A, ONLY_B]),
        ({**AB, "anyOf": [{"required": ["a"]}, {"required": ["b"]}]}, [ONLY_A, ONLY_B, BOTH]),
        ({**AB, "allOf": [{"required": ["a"]}]}, [ONLY_A, BOTH]),
        ({**AB, "minProperties": 1}, [ONLY_A, ONLY_B, BOTH]),
        ({**AB, "maxProperties": 1.0}, [NONE, ONLY_A, ONLY_B]),
        ({**AB, "propertyNames": {"enum": ["b"]}}, [NONE, ONLY_B]),
        ({**AB, "const": {"a": "x"}}, [ONLY_A]),
        ({**AB, "allOf": [{"properties": {"a": {"minLength": 2}}}]}, [NONE, ONLY_B]),
        ({**AB, "properties": {"a": False, "b": STRING}}, [NONE, ONLY_B]),
        (
            {"oneOf": [{**A, "additionalProperties": False}, {**B, "additionalProperties": False}]},
            [ONLY_A, ONLY_B],
        ),
    ],
    ids=str,
)
def test_keywords_of_the_whole_object_are_held(
    parameters: dict[str, Any], valid: list[str]
) -> None:
    found = [text for text in (NONE, ONLY_A, ONLY_B, BOTH) if accepted(parameters, text)]
    assert found == valid


@pytest.mark.parametrize(
    "keyword", ["not", "if", "dependentRequired", "patternProperties", "dependentSchemas"]
)
def test_keywords_of_the_whole_object_that_are_not_held_are_named(keyword: str) -> None:
    schemas = {"not": A, "if": A, "then": B, "dependentRequired": {"a": ["b"]}}
    schemas |= {"patternProperties": {"a": False}, "dependentSchemas": {"a": B}}
    used = {name: schemas[name] for name in (keyword, "then")}
    with pytest.raises(InvalidField, match=f"{keyword} of f"):
        grammar_of({**AB, **used})


def test_branches_that_one_call_may_follow_are_no_one_of() -> None:
    with pytest.raises(InvalidField, match=r"oneOf of f .* write anyOf"):
        grammar_of({"oneOf": [A, B]})


def test_a_property_without_a_name_is_written_once() -> None:
    parameters = {**A, "additionalProperties": {"type": "integer"}}
    assert accepted(parameters, call(a="x", other="3")) and accepted(parameters, ONLY_A)
    assert not accepted(parameters, call(a="x", other="y"))
    assert not accepted(parameters, call(a="x", other="3", more="4"))


@pytest.mark.parametrize(
    ("schema", "valid", "invalid"),
    [
        ({**STRING, "enum": ["a", "bb"], "minLength": 2}, ["bb"], ["a"]),
        ({**STRING, "enum": ["a", "b"], "pattern": "^b$"}, ["b"], ["a"]),
        ({"enum": ["a", "b"], "const": "a"}, ["a"], ["b"]),
        ({"type": ["string", "integer"], "enum": ["1", 2, "x"]}, ["2", "x"], ["1"]),
        ({**STRING, "enum": ["a", 1]}, ["a"], ["1"]),
        ({**STRING, "oneOf": [{"enum": ["a"]}, {"enum": ["b"]}]}, ["a", "b"], ["c"]),
        ({**STRING, "maxLength": 2.0}, ["ab"], ["abc"]),
        ({"type": ["string", "integer"], "minimum": 3}, ["3", "ab"], ["-1", "2"]),
        ({"type": ["string", "null"], "minLength": 5}, ["null", "abcde"], ["Nul", "abcd"]),
        ({"type": ["string", "boolean"], "maxLength": 2}, ["true", "ab"], ["abc"]),
        ({"type": ["string", "array"], "items": {"type": "null"}}, ["[null]", "a"], ["[1]"]),
        ({**STRING, "pattern": r"^\w$"}, ["a"], ["é", "中"]),
        ({**STRING, "pattern": "^[^A-Za-z&&x]$"}, ["1"], ["I", "&"]),
        ({**STRING, "pattern": r"^a\\/b$"}, ["a\\/b"], ["a/b"]),
        ({"minLength": 2}, ["ab", '"ab"', "3"], ["a", '"a"']),
        ({"allOf": [{"$ref": "#/$defs/E"}, {"maxLength": 3}]}, ["red"], ["blue"]),
        ({**STRING, "format": "path"}, ["x"], []),
    ],
    ids=str,
)
def test_a_value_follows_all_keywords_of_its_schema(
    schema: dict[str, Any], valid: list[str], invalid: list[str]
) -> None:
    parameters = required(schema)
    assert [text for text in valid if not accepted(parameters, call(a=text))] == []
    assert [text for text in invalid if accepted(parameters, call(a=text))] == []


def test_a_string_that_reads_as_another_value_is_written_in_quotes() -> None:
    # The reader knows no type for a parameter without a named schema.
    parameters = {"type": "object", "required": ["a"], "additionalProperties": STRING}
    for text in ("12", "null", "[x", '"12'):
        assert not accepted(parameters, call(a=text))
        assert accepted(parameters, call(a=json.dumps(text)))


def test_a_reference_to_the_whole_is_followed() -> None:
    node = {"type": "object", "properties": {"a": {"type": "array", "items": {"$ref": "#"}}}}
    assert accepted(node, call(a='[{"a": []}]')) and not accepted(node, call(a='[{"a": 1}]'))


@pytest.mark.parametrize("most", [1000, 3000, MOST_HELD_LETTERS])
def test_a_string_of_a_high_bound_comes_to_its_end(most: int) -> None:
    text = call(a="x</p> a < b\n</para")
    constraint = byte_compiler().constraint(grammar_of(required({**STRING, "maxLength": most})), ())
    for token in text.encode():
        mask = constraint.mask()
        assert mask is not None and allows(mask, token)
        constraint.append(token)
    assert not constraint.failed


TEXTS = ["a", "b", "bb", "1", "2", "3", "1.5", "null", "true", "é", "[1]", '["a"]', '"a"', ""]
TEXTS += ["{}", '{"a": "a"}', "ab", "nul", " 1", "abc"]
TYPES = ["string", "integer", "number", "boolean", "null", "array", "object"]
VALUES = ["a", "bb", "1", "null", "true", "é", "[1]", 1, 2, 3, None, True, 1.5, [1], {"a": "a"}]
KEYWORDS: dict[str, list[Any]] = {
    "minLength": [1, 2.0],
    "maxLength": [1, 2, 3.0],
    "pattern": ["^b$", "[a-c]", r"^\w$", "^[^a&&b]$"],
    "minimum": [2, 2.0],
    "maximum": [2],
    "items": [{"type": "string"}],
    "$ref": ["#/$defs/E"],
}


def random_schema(rng: random.Random, depth: int = 0) -> dict[str, Any]:
    schema: dict[str, Any] = {}
    if rng.random() < 0.7:
        schema["type"] = rng.choice([*TYPES, "string", ["string", rng.choice(TYPES[1:])]])
    if rng.random() < 0.25:
        schema["enum"] = rng.sample(VALUES, 3)
    for keyword, values in KEYWORDS.items():
        if rng.random() < 0.12:
            schema[keyword] = rng.choice(values)
    for keyword in ("anyOf", "allOf", "oneOf"):
        if depth < 2 and rng.random() < 0.12:
            schema[keyword] = [random_schema(rng, depth + 1) for _ in range(rng.randint(1, 2))]
    return schema


@pytest.mark.parametrize("in_tags", [True, False], ids=["tags", "json"])
def test_what_is_let_through_of_random_schemas_is_valid(in_tags: bool) -> None:
    rng = random.Random(11)
    let_through = 0
    for _ in range(250):
        parameters = required(random_schema(rng))
        if rng.random() < 0.3:
            definitions = parameters.pop("$defs")
            parameters = {"$defs": {**definitions, "T": parameters}, "$ref": "#/$defs/T"}
        try:
            grammar = grammar_of(parameters, in_tags=in_tags)
            byte_compiler().constraint(grammar, ())
        except (InvalidField, GrammarError):
            continue
        for value in TEXTS:
            text = call(a=value)
            if not in_tags:
                inner = value if value[:1] in ('"', "[", "{") else json.dumps(value)
                text = f'<tool_call>\n{{"name": "f", "arguments": {{"a": {inner}}}}}\n</tool_call>'
            if follows(grammar, text):
                let_through += 1
                jsonschema.validate(read(parameters, text), parameters)
    assert let_through > 200


INTEGER = {"type": "integer"}
TREE = {
    "type": "object",
    "properties": {
        "name": STRING,
        "size": INTEGER,
        "inner": {"type": "array", "items": {"$ref": "#/$defs/T"}},
    },
    "required": ["name"],
}
# The form of a recursive model in pydantic.
RECURSIVE = {"$defs": {"T": TREE}, "$ref": "#/$defs/T"}
UNION = {
    "anyOf": [
        {"type": "object", "properties": {"city": STRING, "days": INTEGER}, "required": ["city"]},
        {"type": "object", "properties": {"city": STRING, "flag": {"type": "boolean"}}},
    ]
}
ALL_OF = {"allOf": [{"properties": {"a": {}}}, {"properties": {"a": STRING}}]}
EITHER = {"oneOf": [{"properties": {"a": INTEGER}}, {"properties": {"a": {"type": "boolean"}}}]}
BESIDE = {"properties": {"b": INTEGER}, "allOf": [{"$ref": "#/$defs/a~1b"}], "$defs": {"a/b": TREE}}
ITSELF = {"$ref": "#", "properties": {"a": STRING}}


@pytest.mark.parametrize(
    ("parameters", "name", "text", "value"),
    [
        (RECURSIVE, "name", "7", "7"),
        (RECURSIVE, "size", "7", 7),
        (RECURSIVE, "inner", '[{"name": "a"}]', [{"name": "a"}]),
        (UNION, "city", "7", "7"),
        (UNION, "days", "7", 7),
        (UNION, "flag", "true", True),
        (ALL_OF, "a", "7", "7"),
        (EITHER, "a", "7", 7),
        (EITHER, "a", "true", True),
        (BESIDE, "name", "true", "true"),
        (BESIDE, "b", "7", 7),
        (ITSELF, "a", "7", "7"),
    ],
)
def test_a_parameter_is_read_by_its_type(
    parameters: dict[str, Any], name: str, text: str, value: Any
) -> None:
    found = read(parameters, call(**{name: text}))[name]
    assert found == value and type(found) is type(value)


@pytest.mark.parametrize(
    ("parameters", "arguments"),
    [
        (RECURSIVE, {"name": "7", "size": "7"}),
        (RECURSIVE, {"name": "true", "inner": '[{"name":"a"}]'}),
        (UNION, {"city": "7", "days": "7"}),
        (UNION, {"city": "null", "flag": "true"}),
    ],
)
def test_the_grammar_takes_what_is_read_so(
    parameters: dict[str, Any], arguments: dict[str, str]
) -> None:
    assert accepted(parameters, call(**arguments))


def of(parameters: dict[str, Any]) -> ParameterTypes:
    return ParameterTypes([{"function": {"name": "f", "parameters": parameters}}])


@pytest.mark.parametrize(
    ("parameters", "names", "lacks"),
    [
        (RECURSIVE, [], True),
        (RECURSIVE, ["name"], False),
        ({"anyOf": [{"required": ["a"]}, {"required": ["b"]}]}, [], True),
        ({"anyOf": [{"required": ["a"]}, {"required": ["b"]}]}, ["b"], False),
        ({"anyOf": []}, [], False),
        ({"required": ["a"], "allOf": [{"required": ["b"]}]}, ["a"], True),
        (ITSELF, [], False),
    ],
)
def test_a_required_parameter_is_missed(
    parameters: dict[str, Any], names: list[str], lacks: bool
) -> None:
    assert of(parameters).lacks("f", names) is lacks


def test_named_parameters_are_known() -> None:
    assert of(RECURSIVE).has("f", "size") and not of(RECURSIVE).has("f", "odd")


@pytest.mark.parametrize("fan", [2, 6])
def test_branches_that_lead_on_and_on_cost_no_more_than_a_bound(fan: int) -> None:
    chain = {f"d{at}": {"anyOf": [{"$ref": f"#/$defs/d{at + 1}"}] * fan} for at in range(60)}
    parameters = {"$defs": {**chain, "d60": TREE}, "$ref": "#/$defs/d0"}
    tools = [{"function": {"name": "f", "parameters": parameters}}]
    begun = time.process_time()
    schemas = parameter_schemas("f", tools)
    assert json_types(schemas.get("name", {}), schemas) == ANY
    assert not of(parameters).lacks("f", [])
    assert time.process_time() - begun < 0.5
