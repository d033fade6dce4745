"""Parameters that a tool's schema names by a reference or by branches are read by their types, as
the grammar of forced calls holds them."""

import time
from typing import Any

import pytest

from tasuki.server.text.parsing.parameter_types import (
    ANY,
    ParameterTypes,
    json_types,
    parameter_schemas,
)
from tests.server.test_tagged_arguments import accepted, call, read

STRING, INTEGER = {"type": "string"}, {"type": "integer"}
TREE = {
    "type": "object",
    "properties": {
        "name": STRING,
        "size": INTEGER,
        "inner": {"type": "array", "items": {"$ref": "#/$defs/T"}},
    },
    "required": ["name"],
}
# As pydantic writes a recursive model.
RECURSIVE = {"$defs": {"T": TREE}, "$ref": "#/$defs/T"}
UNION = {
    "anyOf": [
        {"type": "object", "properties": {"city": STRING, "days": INTEGER}, "required": ["city"]},
        {"type": "object", "properties": {"city": STRING, "flag": {"type": "boolean"}}},
    ]
}
BOTH = {"allOf": [{"properties": {"a": {}}}, {"properties": {"a": STRING}}]}
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
        (BOTH, "a", "7", "7"),
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
