"""Random bounded schemas. Every answer that ends by a stop is valid by its schema. Every other one
is a prefix of a valid answer, and nearly all end. `make test` tries a few, `make test-slow` 500,
`TASUKI_SCHEMAS=5000 pytest -m slow tests/engine/test_random_schemas.py` 5,000."""

import json
import os
from typing import Any

import jsonschema
import numpy as np
import pytest

from tasuki.engine import messages as m
from tasuki.model.grammar.grammar import Grammar, GrammarKind
from tasuki.model.ops.sampling.params import SamplingParams
from tests.harness.engines import LETTERS, prompt, submit, tiny_engine

NEW, AT_ONCE = 500, 8
MANY = int(os.environ.get("TASUKI_SCHEMAS", "500"))
Rng = np.random.Generator


def random_schema(rng: Rng, depth: int = 2) -> dict[str, Any]:
    """Return a random schema with values that all end. Unbounded numbers are left out, because no
    keyword limits their digits."""
    kinds = ["string", "integer", "boolean", "null", "enum", "const", "pattern"]
    kinds += ["number", "format"]
    kinds += ["object", "array", "anyOf", "tuple", "map", "oneOf", "allOf", "$ref"] * bool(depth)
    match str(rng.choice(kinds)):
        case "string":
            least = int(rng.integers(0, 3))
            most = least + int(rng.integers(0, 6))
            return {"type": "string", "minLength": least, "maxLength": most}
        case "integer":
            low = int(rng.integers(-50, 50))
            return {"type": "integer", "minimum": low, "maximum": low + int(rng.integers(0, 200))}
        case "enum":
            return {"enum": [1, "two", None, [3], {"a": 4}, False][: int(rng.integers(1, 7))]}
        case "const":
            return {"const": [["x"], "y", -3.5, {}][int(rng.integers(4))]}
        case "pattern":
            return {"type": "string", "pattern": ["^[a-c]{2,4}$", "^\\d{3}-x?$"][rng.integers(2)]}
        case "object":
            names = [name for name in "abcd" if rng.random() < 0.6]
            properties = {name: random_schema(rng, depth - 1) for name in names}
            required = [name for name in names if rng.random() < 0.6]
            return {
                "type": "object",
                "properties": properties,
                "required": required,
                "additionalProperties": False,
            }
        case "array":
            most = int(rng.integers(0, 4))
            least = int(rng.integers(0, most + 1))
            items = random_schema(rng, depth - 1)
            return {"type": "array", "items": items, "minItems": least, "maxItems": most}
        case "tuple":
            items = [random_schema(rng, depth - 1) for _ in range(2)]
            return {"type": "array", "prefixItems": items, "items": False, "minItems": 2}
        case "number":
            return {"type": "number", "multipleOf": 0.25, "minimum": -2, "exclusiveMaximum": 9}
        case "format":
            return {"type": "string", "format": ["date", "time", "ipv4", "uuid"][rng.integers(4)]}
        case "map":
            values = random_schema(rng, depth - 1)
            keys = {"patternProperties": {"^[a-c]{1,3}$": values}, "additionalProperties": False}
            return {"type": "object", **keys, "maxProperties": int(rng.integers(1, 4))}
        case "oneOf":
            return {
                "oneOf": [{"enum": ["a", 1]}, {"type": "array", "maxItems": 0}, {"type": "null"}]
            }
        case "allOf":
            low = int(rng.integers(-9, 9))
            return {"allOf": [{"type": "integer", "minimum": low}, {"maximum": low + 40}]}
        case "$ref":
            item = random_schema(rng, 0)
            return {
                "$id": f"urn:{rng.integers(1 << 30)}",
                "$defs": {"A": item},
                "prefixItems": [{"$ref": "#/$defs/A"}],
                "type": "array",
                "items": False,
            }
        case "anyOf":
            return {"anyOf": [random_schema(rng, depth - 1) for _ in range(2)]}
        case kind:
            return {"type": kind}


def assert_answers_follow(schemas: list[dict[str, Any]], seed: int) -> int:
    """Assert that answers follow their schemas; return the number of ended ones."""
    engine, ended = tiny_engine(arena_mib=24.0), 0
    sources = [json.dumps(schema) for schema in schemas]
    for first in range(0, len(schemas), AT_ONCE):
        for place in range(first, min(first + AT_ONCE, len(schemas))):
            sampling = SamplingParams(
                max_new_tokens=NEW,
                temperature=8.0,
                seed=seed + place,
                stop_token_ids=LETTERS.eos_ids,
                grammar=Grammar(GrammarKind.JSON_SCHEMA, sources[place]),
            )
            engine.post(submit(f"r{place}", prompt(20, place), NEW, sampling=sampling))
        engine.run()
    reasons = {said.request_id: said.reason for said in engine.all_said(m.Finished)}
    for place, schema in enumerate(schemas):
        tokens = engine.tokens(f"r{place}")
        if reasons[m.RequestId(f"r{place}")] is m.FinishReason.STOP:
            ended += 1
            text = bytes(tokens[:-1]).decode()
            jsonschema.validate(json.loads(text), schema)
            continue
        grammar = Grammar(GrammarKind.JSON_SCHEMA, sources[place])
        made = engine.parts.grammars.constraint(grammar, tokens)
        assert len(tokens) == NEW and not made.failed, "not the beginning of a valid one"
    return ended


@pytest.mark.parametrize(
    "count", [24, pytest.param(MANY, marks=[pytest.mark.slow, pytest.mark.timeout(3 * MANY)])]
)
def test_answers_of_random_schemas_are_valid(count: int) -> None:
    rng = np.random.default_rng(16)
    schemas = [random_schema(rng) for _ in range(count)]
    assert assert_answers_follow(schemas, 7) >= 0.95 * count
