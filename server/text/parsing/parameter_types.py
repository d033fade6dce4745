"""The JSON types allowed by the schema of a tool's parameter, and conversion of a value's text to
JSON.

Pure functions. A schema comes from a client: parts of unknown shape allow every type.
"""

import ast
import json
import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from tasuki.model.grammar.held_schema import referred
from tasuki.server.text.json_reading import JsonDepth, is_json, nested_too_deeply

ANY = frozenset({"string", "null", "boolean", "integer", "number", "array", "object"})

# Further names in clients' schemas.
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
_LONGEST_TYPE = 16
_DEFINITIONS = ""
"""Key of a tool's whole schema among the schemas of its parameters, for references into it. No
parameter has this name."""
_MAX_DEPTH = 8
_MOST_LOOKED_AT = 1024
"""Largest number of parts read of one parameter's schema. References may lead to each part many
times."""
_LONGEST_REFERENCE = 1024
_MOST_SCHEMAS = 256
"""Largest number of object schemas read in one tool's schema, at all places together."""
# Python's own reader of literals is slow, and has no limit of their length.
_LONGEST_LITERAL = 1 << 11
# Building Python objects for all values would hold the event loop.
_LONG = 1 << 14
_NOTHING = object()


def parameter_schemas(name: str, tools: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """Return the schemas of the parameters of function `name`, by parameter name. Return an empty
    dict if no tool has this name or it has no parameters."""
    for tool in tools:
        function = tool.get("function")
        if not isinstance(function, Mapping) or function.get("name") != name:
            continue
        parameters = function.get("parameters")
        if not isinstance(parameters, Mapping):
            return {}
        return {**_Objects(parameters).properties(parameters), _DEFINITIONS: parameters}
    return {}


class _Objects:
    """A search over the objects accepted by a tool's schema: written in it directly, by a reference
    or by branches (allOf, anyOf, oneOf). One schema; the search ends after _MOST_SCHEMAS
    schemas."""

    def __init__(self, root: Any) -> None:
        """root: the whole schema, for references into it."""
        self._root = root
        self._left = _MOST_SCHEMAS
        self._around: list[int] = []
        """Ids of the schemas around the current one. Entering one of them again would add
        nothing."""

    def properties(self, schema: Any) -> dict[str, Any]:
        """Return one schema for the value of each property, by name. It combines all branches
        naming the property."""
        found: dict[str, Any] = {}
        if not self._enters(schema):
            return found
        own = schema.get("properties")
        found.update(own if isinstance(own, Mapping) else {})
        for inner in self._all_of(schema):
            for name, item in self.properties(inner).items():
                found[name] = {"allOf": [found[name], item]} if name in found else item
        for union in self._unions(schema):
            either: dict[str, list[Any]] = {}
            for inner in union:
                for name, item in self.properties(inner).items():
                    either.setdefault(name, []).append(item)
            for name, items in either.items():
                item = items[0] if len(items) == 1 else {"anyOf": items}
                found[name] = {"allOf": [found[name], item]} if name in found else item
        self._around.pop()
        return found

    def lacks(self, schema: Any, names: Collection[str]) -> bool:
        """Return True if an object with only the properties `names` lacks a property required by
        the schema."""
        if not self._enters(schema):
            return False
        required = schema.get("required")
        listed = required if isinstance(required, list) else []
        found = (
            any(isinstance(name, str) and name not in names for name in listed)
            or any(self.lacks(inner, names) for inner in self._all_of(schema))
            or any(
                all(self.lacks(inner, names) for inner in union)
                for union in self._unions(schema)
                if union
            )
        )
        self._around.pop()
        return found

    def _enters(self, schema: Any) -> bool:
        if not isinstance(schema, Mapping) or id(schema) in self._around:
            return False
        self._left -= 1
        if self._left < 0 or len(self._around) >= _MAX_DEPTH:
            return False
        self._around.append(id(schema))
        return True

    def _all_of(self, schema: Mapping[str, Any]) -> list[Any]:
        """Return the schemas combined by the `$ref` and `allOf` of a schema: a value must satisfy
        all of them."""
        inner = schema.get("allOf")
        target = [_referred(schema["$ref"], self._root)] if "$ref" in schema else []
        return [*target, *(inner if isinstance(inner, list) else [])]

    def _unions(self, schema: Mapping[str, Any]) -> list[list[Any]]:
        """Return the lists of schemas in a schema's anyOf and oneOf. A value must satisfy one
        schema of each list."""
        listed = [schema.get(keyword) for keyword in ("anyOf", "oneOf")]
        return [items for items in listed if isinstance(items, list)]


class ParameterTypes:
    """The JSON types of the parameters of a request's tools, each searched once. One answer, one
    thread."""

    def __init__(self, tools: Sequence[Mapping[str, Any]]) -> None:
        """tools: the request's tool definitions."""
        self._tools = tools
        # The first tool of each name, once a type is asked for.
        self._named: dict[str, Mapping[str, Any]] | None = None
        self._schemas: dict[str, Mapping[str, Any]] = {}
        self._types: dict[tuple[str, str], frozenset[str]] = {}

    def knows(self, function: str) -> bool:
        """Return True if one of the tools is a function of this name."""
        return function in self._tools_by_name

    def has(self, function: str, parameter: str) -> bool:
        """Return True if the function's schema names the parameter."""
        return bool(parameter) and parameter in self._schemas_of(function)

    def lacks(self, function: str, parameters: Collection[str]) -> bool:
        """Return True if a call with only these parameters lacks a required parameter of the
        function."""
        whole = self._schemas_of(function).get(_DEFINITIONS)
        return _Objects(whole).lacks(whole, parameters)

    @property
    def _tools_by_name(self) -> Mapping[str, Mapping[str, Any]]:
        if self._named is None:
            self._named = {_function_name(tool): tool for tool in reversed(self._tools)}
        return self._named

    def _schemas_of(self, function: str) -> Mapping[str, Any]:
        if function not in self._schemas:
            tool = self._tools_by_name.get(function)
            if tool is None:
                return {}
            self._schemas[function] = parameter_schemas(function, [tool])
        return self._schemas[function]

    def of(self, function: str, parameter: str) -> frozenset[str]:
        """Return the JSON types allowed for a function's parameter; all types if it has no
        schema."""
        schemas = self._schemas_of(function)
        if not parameter or parameter not in schemas:
            return ANY
        key = function, parameter
        if key not in self._types:
            self._types[key] = json_types(schemas[parameter], schemas)
        return self._types[key]


def json_types(schema: Any, schemas: Mapping[str, Any]) -> frozenset[str]:
    """Return the JSON types allowed by a parameter's schema; all types if it is too large to
    search.

    schemas: schemas of all parameters of the function, as returned by parameter_schemas().
    """
    return _Search(schemas.get(_DEFINITIONS)).types(schema, _MAX_DEPTH)


class _Search:
    """The search for the JSON types allowed by one schema. It ends after _MOST_LOOKED_AT parts of
    the schema."""

    def __init__(self, root: Any) -> None:
        """root: the whole schema, for references into it."""
        self._root = root
        self._left = _MOST_LOOKED_AT

    def types(self, schema: Any, depth: int) -> frozenset[str]:
        """Return the JSON types allowed by a schema. depth: allowed nesting levels, because a
        reference may lead back to its own schema."""
        if not isinstance(schema, Mapping) or not depth or not self._may_look_at(1):
            return ANY
        found = ANY
        if "$ref" in schema:
            found &= self.types(_referred(schema["$ref"], self._root), depth - 1)
        if "type" in schema:
            kinds = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
            if self._may_look_at(len(kinds)):
                found &= _named(kinds)
        if "const" in schema:
            found &= {_type_of(schema["const"])}
        if isinstance(schema.get("enum"), list) and self._may_look_at(len(schema["enum"])):
            found &= {_type_of(value) for value in schema["enum"]}
        for union in ("anyOf", "oneOf"):
            if isinstance(schema.get(union), list) and self._may_look_at(len(schema[union])):
                allowed = [self.types(item, depth - 1) for item in schema[union]]
                found &= frozenset().union(*allowed)
        if isinstance(schema.get("allOf"), list) and self._may_look_at(len(schema["allOf"])):
            for item in schema["allOf"]:
                found &= self.types(item, depth - 1)
        if found == ANY and "properties" in schema:
            found = frozenset({"object"})
        elif found == ANY and "items" in schema:
            found = frozenset({"array"})
        if schema.get("nullable") is True:
            found |= {"null"}
        return found or ANY

    def _may_look_at(self, parts: int) -> bool:
        self._left -= parts
        return self._left >= 0


def json_of(text: str, types: frozenset[str], depth: JsonDepth) -> str:
    """Return the JSON text of a parameter's value, written by a model as `text` without quotes. If
    the text can be read as one of the `types`, the result has this type; otherwise it is a string.
    depth: nesting depth of the text."""
    word = text.strip()
    if types != {"string"}:
        value = _other_than_string(word, types, depth)
        if value is not None:
            return value
    return json.dumps(text, ensure_ascii=False)


def _other_than_string(word: str, types: frozenset[str], depth: JsonDepth) -> str | None:
    if len(word) > _LONG:
        return _long_holder(word, types, depth)
    value = _read(word)
    if value is not _NOTHING:
        kind = _type_of(value)
        if kind in types or (kind == "integer" and "number" in types):
            # Take a quoted string as a string only without a schema: with one, the quotes may be
            # part of the value.
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
    """Return the value of a JSON text. Return _NOTHING if the text is no JSON, nests too deeply, or
    is an infinite number."""
    try:
        value = json.loads(word, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return _NOTHING
    if nested_too_deeply(value) or (isinstance(value, float) and not math.isfinite(value)):
        return _NOTHING
    return value


def _long_holder(word: str, types: frozenset[str], depth: JsonDepth) -> str | None:
    """Return the long text itself if it is a JSON list or object, and its type is allowed;
    otherwise None."""
    for kind, opening in (("array", "["), ("object", "{")):
        if kind in types and word.startswith(opening):
            return word if depth.is_bounded() and is_json(word) else None
    return None


def _literal(word: str, types: frozenset[str]) -> str | None:
    """Return the JSON text of a list or an object written in Python's syntax. Return None if the
    text is neither, or its type is not allowed."""
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
    """Return the schema a `$ref` leads to inside the whole schema, found in the same way as by a
    grammar. Return None if there is none."""
    if not isinstance(reference, str) or len(reference) > _LONGEST_REFERENCE:
        return None
    return referred(reference, root)


def _named(kinds: list[Any]) -> frozenset[str]:
    names = {name.lower() for name in kinds if isinstance(name, str) and len(name) <= _LONGEST_TYPE}
    found = {_NAMES.get(name, name) for name in names}
    if "number" in found:
        found.add("integer")
    return ANY & found or ANY


def _function_name(tool: Mapping[str, Any]) -> str:
    function = tool.get("function")
    name = function.get("name") if isinstance(function, Mapping) else None
    return name if isinstance(name, str) else ""


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
