"""Answers that are to follow a JSON schema."""

import json
from collections.abc import Mapping
from typing import Any

from tasuki.cli.conformance.caller import Caller
from tasuki.cli.conformance.outcome import Departure, Unserved
from tasuki.cli.conformance.question import End, Question

from .answers import must_stream_alike

FLAT = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 12}, "age": {"type": "integer"}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
NESTED = {
    "type": "object",
    "properties": {
        "days": {"type": "array", "items": {"enum": ["mon", "tue"]}, "minItems": 1, "maxItems": 3},
        "open": {"type": "boolean"},
        "at": {"anyOf": [{"type": "null"}, {"type": "string", "maxLength": 8}]},
    },
    "required": ["days", "open", "at"],
    "additionalProperties": False,
}
_FIELDS = ("response_format", "output_config", "json_schema", "text.format")


async def flat(caller: Caller) -> None:
    await _must_follow(caller, 'Write {"name": "Emma", "age": 21}.', FLAT)


async def nested(caller: Caller) -> None:
    await _must_follow(
        caller, 'Write {"days": ["mon", "tue"], "open": true, "at": "noon"}.', NESTED
    )


async def _must_follow(caller: Caller, text: str, schema: Mapping[str, Any]) -> None:
    try:
        import jsonschema
    except ImportError as missing:
        raise Unserved("needs jsonschema: pip install jsonschema") from missing
    answer = await must_stream_alike(caller, Question(text, schema=schema), *_FIELDS)
    if answer.end is not End.DONE:
        raise Unserved(f"the answer ended {answer.end.value}")
    try:
        value = json.loads(answer.text)
    except (ValueError, RecursionError) as error:
        raise Departure("the answer", "JSON", answer.text) from error
    for found in jsonschema.Draft202012Validator(schema).iter_errors(value):
        raise Departure("the answer", "a value of the schema", f"{answer.text}: {found.message}")
