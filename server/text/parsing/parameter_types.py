"""The JSON types that a parameter's schema allows, and the JSON value that a text stands for.

Pure functions. A schema is a client's: what in it is of no known shape allows every type.
"""

import ast
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from tasuki.server.text.json_bounds import nested_too_deeply

ANY = frozenset({"string", "null", "boolean", "integer", "number", "array", "object"})

# Other names that clients' schemas use.
_NAMES = {
    "str": "string",
    "text": "string",
    "int": "integer",
    "float": "number",
    "double": "number",
    "bool": "boolean",
    "list": "array",
    "dict": "object",
    "none": "null",
}
_DEFINITIONS = ""
"""The key, which no parameter has, under which the whole schema is, for references into it."""
_MAX_DEPTH = 8
# Python's own reader of literals is slow and not bounded by their length.
_LONGEST_LITERAL = 1 << 14
_NOTHING = object()


def parameter_schemas(name: str, tools: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """By the parameters of the function of that name: their schemas. Empty where no definition has
    any."""
    for tool in tools:
        function = tool.get("function")
        if not isinstance(function, Mapping) or function.get("name") != name:
            continue
        parameters = function.get("parameters")
        properties = parameters.get("properties") if isinstance(parameters, Mapping) else None
        if isinstance(properties, Mapping):
            return {**properties, _DEFINITIONS: parameters}
    return {}


def json_types(schema: Any, schemas: Mapping[str, Any], depth: int = _MAX_DEPTH) -> frozenset[str]:
    """schemas: of all parameters, as parameter_schemas gives them. REQUIRES: depth is left to its
    default by callers; it bounds references that lead to themselves."""
    if not isinstance(schema, Mapping) or not depth:
        return ANY
    found = ANY
    if "$ref" in schema:
        target = _referred(schema["$ref"], schemas.get(_DEFINITIONS))
        found &= json_types(target, schemas, depth - 1)
    if "type" in schema:
        found &= _named(schema["type"])
    if "const" in schema:
        found &= {_type_of(schema["const"])}
    if isinstance(schema.get("enum"), list):
        found &= {_type_of(value) for value in schema["enum"]}
    for union in ("anyOf", "oneOf"):
        if isinstance(schema.get(union), list):
            kinds = [json_types(item, schemas, depth - 1) for item in schema[union]]
            found &= frozenset().union(*kinds)
    if isinstance(schema.get("allOf"), list):
        for item in schema["allOf"]:
            found &= json_types(item, schemas, depth - 1)
    if found == ANY and "properties" in schema:
        found = frozenset({"object"})
    elif found == ANY and "items" in schema:
        found = frozenset({"array"})
    if schema.get("nullable") is True:
        found |= {"null"}
    return found or ANY


def json_of(text: str, types: frozenset[str]) -> str:
    """The JSON text of the value that a model wrote as `text`: of an allowed type where it can be
    read as one, else a string."""
    word = text.strip()
    if types != {"string"}:
        value = _other_than_string(word, types)
        if value is not None:
            return value
    return json.dumps(text, ensure_ascii=False)


def _other_than_string(word: str, types: frozenset[str]) -> str | None:
    value = _read(word)
    if value is not _NOTHING:
        kind = _type_of(value)
        if kind in types or (kind == "integer" and "number" in types):
            # A quoted string is one only where no schema says that the quotes are its own.
            return word if kind != "string" or types == ANY else None
        if kind == "number" and "integer" in types and value == math.floor(value):
            return str(int(value))
    lower = word.lower()
    if "null" in types and (lower == "null" or (lower == "none" and "string" not in types)):
        return "null"
    if "boolean" in types and lower in ("true", "false"):
        return lower
    if types & {"array", "object"} and word[:1] in ("[", "{"):
        return _literal(word, types)
    return None


def _read(word: str) -> Any:
    """The JSON value; _NOTHING of what is none, or nests too deeply to come back."""
    try:
        value = json.loads(word, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return _NOTHING
    if nested_too_deeply(value) or (isinstance(value, float) and not math.isfinite(value)):
        return _NOTHING
    return value


def _literal(word: str, types: frozenset[str]) -> str | None:
    """Of a list or an object in Python's spelling."""
    if len(word) > _LONGEST_LITERAL:
        return None
    try:
        value = ast.literal_eval(word)
        text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
        return None
    return text if _type_of(value) in types and not nested_too_deeply(value) else None


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is no JSON")


def _referred(reference: Any, root: Any) -> Any:
    """What a reference into the whole schema names; None where it names nothing in it."""
    if not isinstance(reference, str) or not reference.startswith("#/"):
        return None
    for name in reference.removeprefix("#/").split("/"):
        root = root.get(name) if isinstance(root, Mapping) else None
    return root


def _named(kind: Any) -> frozenset[str]:
    names = kind if isinstance(kind, list) else [kind]
    found = {_NAMES.get(name.lower(), name.lower()) for name in names if isinstance(name, str)}
    if "number" in found:
        found.add("integer")
    return ANY & found or ANY


def _type_of(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int):
        return "integer"
    if isinstance(value, float):
        return "number"
    if isinstance(value, str):
        return "string"
    return "array" if isinstance(value, list) else "object"
