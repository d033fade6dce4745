"""Schemas of every documented constructor of four generators. Nearly all are enforced, in a
response_format and between tags. A rejection names the keyword, and values of the types are
accepted.

generator_schemas.json has one schema per constructor, as written by zod 4.6.7, typebox 1.4.3,
pydantic 2.14.4 and msgspec 0.23.0.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from tasuki.model.grammar.grammar import Grammar, GrammarError, GrammarKind
from tasuki.model.grammar.grammar_compiler import GrammarCompiler
from tasuki.model.grammar.vocabulary import ALL_BYTES
from tasuki.server.errors import InvalidField
from tasuki.server.text.grammars.call_grammar import CallGrammar, OfferedTool
from tests.model.test_schema_dialects import BYTES, follows

GENERATORS: dict[str, dict[str, dict[str, Any]]] = json.loads(
    Path(__file__).with_name("generator_schemas.json").read_text(encoding="utf-8")
)
MOST_REFUSED = 0.08
KEYWORDS = (
    *("not", "uniqueItems", "unevaluatedProperties", "pattern", "$ref"),
    *("minimum and maximum of a number",),
)
"""Keywords of rejections, as named in docs/structured-output.md."""


def refusal(schema: dict[str, Any], grammars: GrammarCompiler, *, in_tags: bool) -> str | None:
    """Return the rejection of the schema; None if it is enforced."""
    grammar = Grammar(GrammarKind.JSON_SCHEMA, json.dumps(schema))
    try:
        if in_tags:
            definitions = {"$defs": schema["$defs"]} if "$defs" in schema else {}
            parameters = {"type": "object", "properties": {"a": schema}, **definitions}
            function = {"name": "f", "parameters": {**parameters, "required": ["a"]}}
            tool = OfferedTool({"type": "function", "function": function})
            asked = CallGrammar("tools", [tool], in_tags=True, many=False).forced()
            grammar = Grammar(asked.kind, asked.source)
        grammars.constraint(grammar, ())
    except (GrammarError, InvalidField) as error:
        return str(error)
    return None


@pytest.mark.parametrize("in_tags", [False, True], ids=["json", "tags"])
@pytest.mark.parametrize("generator", GENERATORS)
def test_nearly_every_constructor_is_followed(generator: str, in_tags: bool) -> None:
    grammars = GrammarCompiler(ALL_BYTES)
    schemas = GENERATORS[generator]
    said = {name: refusal(schema, grammars, in_tags=in_tags) for name, schema in schemas.items()}
    refused = {name: complaint for name, complaint in said.items() if complaint is not None}
    assert len(schemas) > 50
    assert len(refused) <= MOST_REFUSED * len(schemas), refused
    for name, complaint in refused.items():
        assert any(keyword in complaint for keyword in KEYWORDS), (name, complaint)


VALUES: dict[str, dict[str, Any]] = {
    "pydantic": {
        "str": "a",
        "int": 3,
        "float": 0.5,
        "bool": True,
        "None": None,
        "Any": [1],
        "bytes": "a",
        "Path": "/a",
        "SecretStr": "a",
        "Decimal": "-1.50",
        "datetime": "2026-11-29T10:00:00Z",
        "date": "2026-11-29",
        "time": "10:00:00Z",
        "timedelta": "P1D",
        "UUID": "2eb8aa08-aa98-11ea-b4aa-73b441d16380",
        "AnyUrl": "https://a.example/",
        "HttpUrl": "https://a.example/",
        "EmailStr": "a@b.example",
        "IPv4Address": "10.0.0.1",
        "IPv4Network": "10.0.0.0/8",
        "Pattern": "a+",
        "Literal": "b",
        "Enum": "b",
        "Optional": None,
        "Union": "a",
        "list": ["a"],
        "conlist": [1],
        "tuple": ["a", 1],
        "dict": {"a": 1},
        "dict of Literal": {"a": 1},
        "dict of Enum": {"b": 1},
        "constr": "123",
        "conint": 6,
        "extra=forbid": {"a": "b"},
        "extra=allow": {"a": "b", "c": 1},
        "recursive": {"name": "a", "parts": [{"name": "b"}]},
        "discriminated": {"kind": "cat", "lives": 9},
    },
    "zod": {
        "string": "a",
        "int": 3,
        "number": 0.5,
        "boolean": False,
        "null": None,
        "any": {"a": 1},
        "literal": "a",
        "enum": "b",
        "startsWith": "a/bc",
        "endsWith": "ca.b",
        "includes": "cabd",
        "lowercase": "a1",
        "base64": "YWI=",
        "base64url": "a_-",
        "cuid": "cabcdefgh",
        "cuid2": "a1",
        "ulid": "01ARZ3NDEKTSV4RRFFQ69G5FAV",
        "nanoid": "V1StGXR8_Z5jdHi6B-myT",
        "e164": "+4912345678",
        "hex": "ff",
        "mac": "00:1A:2B:3C:4D:5E",
        "cidrv4": "10.0.0.0/8",
        "email": "a.b@c.example",
        "url": "https://a.example",
        "nullable": None,
        "array": ["a"],
        "tuple": ["a", 1],
        "record": {"a": 1},
        "partialRecord": {"b": 1},
        "object": {"a": "b", "b": 1},
        "looseObject": {"a": "b", "c": 1},
        "intersection": {"a": "b", "b": 1},
        "json": {"a": [1, "b", None]},
        "recursive": {"name": "a", "children": [{"name": "b", "children": []}]},
    },
}


@pytest.mark.parametrize("generator", VALUES)
def test_values_of_the_types_are_let_through(generator: str) -> None:
    grammars = GrammarCompiler(BYTES)
    schemas = GENERATORS[generator]
    kept_out = [
        name
        for name, value in VALUES[generator].items()
        if not follows(grammars, schemas[name], value)
    ]
    assert not kept_out
