"""Schemas of every documented constructor of four generators: nearly all are followed, in a
response_format and between tags, and a refusal names the keyword.

generator_schemas.json has one schema a constructor, as written by zod 4.6.7, typebox 1.4.3,
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

GENERATORS: dict[str, dict[str, dict[str, Any]]] = json.loads(
    Path(__file__).with_name("generator_schemas.json").read_text(encoding="utf-8")
)
MOST_REFUSED = 0.08
KEYWORDS = (
    *("not", "uniqueItems", "unevaluatedProperties", "pattern", "$ref"),
    *("minimum and maximum of a number",),
)
"""Of refusals, as docs/structured-output.md names them."""


def refusal(schema: dict[str, Any], grammars: GrammarCompiler, *, in_tags: bool) -> str | None:
    """Return what is said of the schema; None: it is followed."""
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
