"""Schemas as pydantic 2.14 and zod 4.6 write their types, each with a value that follows it."""

from typing import Any

_NUMBER = {"type": "number"}
_DRAFT = "https://json-schema.org/draft/2020-12/schema"
_INTEGERS = {"minimum": -9007199254740991, "maximum": 9007199254740991}
_EMAIL = (
    r"^(?!\.)(?!.*\.\.)([A-Za-z0-9_'+\-\.]*)[A-Za-z0-9_+-]@([A-Za-z0-9][A-Za-z0-9\-]*\.)+"
    r"[A-Za-z]{2,}$"
)
_BASE64 = "^$|^(?:[0-9a-zA-Z+/]{4})*(?:(?:[0-9a-zA-Z+/]{2}==)|(?:[0-9a-zA-Z+/]{3}=))?$"


def _text(**keywords: Any) -> dict[str, Any]:
    return {"type": "string", **keywords}


def _object(properties: dict[str, Any], **keywords: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": [*properties], **keywords}


PYDANTIC: dict[str, tuple[dict[str, Any], Any]] = {
    "str": (_text(title="A"), "a"),
    "int": ({"title": "A", "type": "integer"}, 3),
    "float": ({"title": "A", "type": "number"}, 0.5),
    "bool": ({"title": "A", "type": "boolean"}, True),
    "None": ({"type": "null"}, None),
    "Any": ({"title": "A"}, [1]),
    "bytes": (_text(format="binary"), "a"),
    "Path": (_text(format="path"), "/a"),
    "SecretStr": (_text(format="password", writeOnly=True), "a"),
    "Decimal": (
        {"anyOf": [_NUMBER, _text(pattern=r"^(?!^[-+.]*$)[+-]?0*\d*\.?\d*$")]},
        "-1.50",
    ),
    "datetime": (_text(format="date-time"), "2026-11-29T10:00:00Z"),
    "date": (_text(format="date"), "2026-11-29"),
    "time": (_text(format="time"), "10:00:00Z"),
    "timedelta": (_text(format="duration"), "P1D"),
    "UUID": (_text(format="uuid"), "2eb8aa08-aa98-11ea-b4aa-73b441d16380"),
    "AnyUrl": (_text(format="uri", minLength=1), "https://a.example/"),
    "HttpUrl": (_text(format="uri", minLength=1, maxLength=2083), "https://a.example/"),
    "EmailStr": (_text(format="email"), "a@b.example"),
    "IPv4Address": (_text(format="ipv4"), "10.0.0.1"),
    "IPv4Network": (_text(format="ipv4network"), "10.0.0.0/8"),
    "Pattern": (_text(format="regex"), "a+"),
    "Literal": ({"enum": ["a", "b"], "type": "string"}, "b"),
    "Enum": (
        {"$defs": {"C": {"enum": [1, 2], "title": "C", "type": "integer"}}, "$ref": "#/$defs/C"},
        2,
    ),
    "Optional": ({"anyOf": [_text(), {"type": "null"}], "default": None}, None),
    "Union": ({"anyOf": [{"type": "integer"}, _text()]}, "a"),
    "list": ({"items": {"type": "integer"}, "type": "array"}, [1, 2]),
    "conlist": ({"items": {}, "type": "array", "minItems": 1, "maxItems": 2}, ["a"]),
    "tuple": (
        {
            "type": "array",
            "prefixItems": [{"type": "integer"}, _text()],
            "minItems": 2,
            "maxItems": 2,
        },
        [1, "a"],
    ),
    "dict": ({"additionalProperties": {"type": "integer"}, "type": "object"}, {"a": 1}),
    "dict of Literal": (
        {
            "additionalProperties": {"type": "integer"},
            "propertyNames": {"enum": ["a", "b"]},
            "type": "object",
        },
        {"a": 1},
    ),
    "dict of Enum": (
        {
            "$defs": {"C": {"enum": ["a", "b"], "title": "C", "type": "string"}},
            "additionalProperties": {"type": "integer"},
            "propertyNames": {"$ref": "#/$defs/C"},
            "type": "object",
        },
        {"b": 1},
    ),
    "dict of constr": (
        {
            "patternProperties": {r"^\w+$": {"type": "integer"}},
            "type": "object",
            "additionalProperties": False,
        },
        {"a": 1},
    ),
    "constr": (_text(pattern=r"^\d{3}$", minLength=3, maxLength=3), "123"),
    "conint": ({"exclusiveMinimum": 0, "maximum": 9, "multipleOf": 3, "type": "integer"}, 6),
    "extra=forbid": (_object({"a": _text()}, additionalProperties=False), {"a": "b"}),
    "extra=allow": (_object({"a": _text()}, additionalProperties=True), {"a": "b", "c": 1}),
    "a recursive model": (
        {
            "$defs": {
                "T": _object({"a": {"items": {"$ref": "#/$defs/T"}, "type": "array"}}, title="T")
            },
            "$ref": "#/$defs/T",
        },
        {"a": [{"a": []}]},
    ),
    "discriminated": (
        {
            "$defs": {
                "A": _object({"kind": {"const": "a", "type": "string"}, "x": {"type": "integer"}}),
                "B": _object({"kind": {"const": "b", "type": "string"}}),
            },
            "discriminator": {
                "mapping": {"a": "#/$defs/A", "b": "#/$defs/B"},
                "propertyName": "kind",
            },
            "oneOf": [{"$ref": "#/$defs/A"}, {"$ref": "#/$defs/B"}],
        },
        {"kind": "a", "x": 1},
    ),
}
ZOD: dict[str, tuple[dict[str, Any], Any]] = {
    "string": (_text(), "a"),
    "int": ({"type": "integer", **_INTEGERS}, 3),
    "number": (_NUMBER, 0.5),
    "boolean": ({"type": "boolean"}, False),
    "null": ({"type": "null"}, None),
    "any": ({"$schema": _DRAFT}, {"a": 1}),
    "literal": (_text(const="a"), "a"),
    "enum": (_text(enum=["a", "b"]), "b"),
    "startsWith": (_text(format="starts_with", pattern=r"^a\/b.*"), "a/bc"),
    "endsWith": (_text(format="ends_with", pattern=r".*a\.b$"), "ca.b"),
    "includes": (_text(format="includes", pattern=r"a\+b"), "ca+bd"),
    "lowercase": (_text(format="lowercase", pattern="^[^A-Z]*$"), "a1"),
    "base64": (_text(format="base64", contentEncoding="base64", pattern=_BASE64), "YWI="),
    "base64url": (_text(format="base64url", pattern="^[A-Za-z0-9_-]*$"), "a_-"),
    "cuid": (_text(format="cuid", pattern="^[cC][^\\s-]{8,}$"), "cabcdefgh"),
    "cuid2": (_text(format="cuid2", pattern="^[0-9a-z]+$"), "a1"),
    "ulid": (
        _text(format="ulid", pattern="^[0-9A-HJKMNP-TV-Za-hjkmnp-tv-z]{26}$"),
        "01ARZ3NDEKTSV4RRFFQ69G5FAV",
    ),
    "nanoid": (_text(format="nanoid", pattern="^[a-zA-Z0-9_-]{21}$"), "V1StGXR8_Z5jdHi6B-myT"),
    "e164": (_text(format="e164", pattern=r"^\+[1-9]\d{6,14}$"), "+4912345678"),
    "hex": (_text(format="hex", pattern="^[0-9a-fA-F]*$"), "ff"),
    "mac": (_text(format="mac", pattern="^(?:[0-9A-F]{2}:){5}[0-9A-F]{2}$"), "00:1A:2B:3C:4D:5E"),
    "cidrv4": (
        _text(format="cidrv4", pattern=r"^(\d{1,3}\.){3}\d{1,3}\/([0-9]|[12][0-9])$"),
        "10.0.0.0/8",
    ),
    "email": (_text(format="email", pattern=_EMAIL), "a.b@c.example"),
    "url": (_text(format="uri"), "https://a.example"),
    "nullable": ({"anyOf": [_text(), {"type": "null"}]}, None),
    "array": ({"type": "array", "items": _text()}, ["a"]),
    "tuple": (
        {"type": "array", "prefixItems": [_text(), _NUMBER], "minItems": 2, "maxItems": 2},
        ["a", 1],
    ),
    "record": (
        {"type": "object", "propertyNames": _text(), "additionalProperties": _NUMBER},
        {"a": 1},
    ),
    "partialRecord": (
        {
            "type": "object",
            "propertyNames": _text(enum=["a", "b"]),
            "additionalProperties": _NUMBER,
        },
        {"b": 1},
    ),
    "record of a pattern": (
        {"type": "object", "propertyNames": _text(pattern="^a"), "additionalProperties": _NUMBER},
        {"ab": 1},
    ),
    "object": (_object({"a": _text()}, additionalProperties=False), {"a": "b"}),
    "looseObject": (_object({"a": _text()}, additionalProperties={}), {"a": "b", "c": 1}),
    "intersection": (
        {"allOf": [_object({"a": _text()}), _object({"b": _NUMBER})]},
        {"a": "b", "b": 1},
    ),
    "json": (
        {
            "$defs": {
                "j": {
                    "anyOf": [
                        _text(),
                        _NUMBER,
                        {"type": "boolean"},
                        {"type": "null"},
                        {"type": "array", "items": {"$ref": "#/$defs/j"}},
                        {
                            "type": "object",
                            "propertyNames": _text(),
                            "additionalProperties": {"$ref": "#/$defs/j"},
                        },
                    ]
                }
            },
            "$ref": "#/$defs/j",
        },
        {"a": [1, "b", None]},
    ),
    "recursive": (_object({"a": {"type": "array", "items": {"$ref": "#"}}}), {"a": [{"a": []}]}),
}
