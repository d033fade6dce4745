"""JSON Schemas of fields, in draft 2020-12. Pure.

A field that is null counts as absent, so every shape of an optional field takes null.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

Schema: TypeAlias = Mapping[str, Any]
Fields: TypeAlias = Mapping[str, Schema]
"""By the name of a field of an object: the schema of its value."""

NULL: Schema = {"type": "null"}
ANY: Schema = {}
"""Whatever it is, no answer depends on it."""
NOTHING: Schema = {"not": {}}
"""No value is taken, null neither."""
TEXT: Schema = {"type": ["string", "null"]}
FLAG: Schema = {"type": ["boolean", "null"]}
OBJECT: Schema = {"type": ["object", "null"]}
STRING: Schema = {"type": "string"}
TOKEN_ID: Schema = {"type": "integer", "minimum": 0, "maximum": 2**31 - 1}


def text(most: int) -> Schema:
    """most: characters."""
    return {**TEXT, "maxLength": most}


def integer(least: int = -(2**63), most: int = 2**63 - 1) -> Schema:
    return {"type": ["integer", "null"], "minimum": least, "maximum": most}


def number(least: float | None = None, most: float | None = None) -> Schema:
    bounds = {"minimum": least, "maximum": most}
    given = {name: bound for name, bound in bounds.items() if bound is not None}
    return {"type": ["number", "null"], **given}


def array(items: Schema = ANY, *, least: int = 0, most: int | None = None) -> Schema:
    """Also null."""
    return {**nonnull_array(items, least=least, most=most), "type": ["array", "null"]}


def nonnull_array(items: Schema = ANY, *, least: int = 0, most: int | None = None) -> Schema:
    bounds = {} if most is None else {"maxItems": most}
    least_items = {"minItems": least} if least else {}
    of_items = {"items": items} if items else {}
    return {"type": "array", **of_items, **least_items, **bounds}


def one_of(values: Iterable[Any]) -> Schema:
    """One of these values."""
    return {"enum": list(values)}


def either(*schemas: Schema) -> Schema:
    return {"anyOf": list(schemas)}


def object_of(
    fields: Fields, required: Sequence[str] = (), others: Schema | bool | None = None
) -> Schema:
    """An object with these fields. others: what a field of any other name may be; None: anything.
    REQUIRES: a required field's schema says itself whether it takes null."""
    shape: dict[str, Any] = {"type": "object", "properties": dict(fields)}
    if required:
        shape["required"] = list(required)
    if others is not None:
        shape["additionalProperties"] = others
    return shape


def or_null(schema: Schema) -> Schema:
    return either(schema, NULL)
