"""Rewriting of callers' JSON Schemas, in any dialect, for llguidance.

Pure functions. A rewritten ("held") schema accepts the same values as the caller's. Keywords
without a constraint are left out. Some keywords are replaced by others known to llguidance; the
table is in docs/structured-output.md. All else stays the same, for llguidance to support or reject.

It also lists the supported string formats. Any other format is an annotation without effect, as in
JSON Schema, and its name can be reported.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from .ecma_pattern import rust_pattern
from .grammar import GrammarError

FORMATS = frozenset(
    (*("date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid"), "uri")
)
"""The string formats supported in JSON schemas."""
MOST_IGNORED_FORMATS = 16
"""Largest number of unsupported format names reported for one grammar."""
ODD_FORMAT = "?"
_FORMAT_NAME = re.compile(r"[!-+\-.0-~/]{1,64}")
"""Pattern of a format name fit for a header: printable ASCII without white space, and without the
comma, the separator of names."""
# Keywords without schemas in their values, and keywords of schemas by name.
_WITHOUT_SCHEMAS = frozenset(
    {"const", "enum", "default", "examples", "example", "required", "type"}
)
_SCHEMAS_BY_NAME = frozenset(
    {"properties", "patternProperties", "dependentSchemas", "$defs", "definitions"}
)


def ignored_formats(schema: Any) -> tuple[str, ...]:
    """Return the names of the unsupported string formats in a caller's schema, each once, in order,
    at most MOST_IGNORED_FORMATS. ODD_FORMAT replaces long names, and names with characters not
    allowed in a header. The time is linear in the schema."""
    found: dict[str, None] = {}
    left = [schema]
    while left and len(found) < MOST_IGNORED_FORMATS:
        item = left.pop()
        if isinstance(item, list):
            left += reversed(item)
        elif isinstance(item, Mapping):
            name = item.get("format")
            if isinstance(name, str) and name not in FORMATS:
                found[name if _FORMAT_NAME.fullmatch(name) else ODD_FORMAT] = None
            left += reversed(
                [each for key, value in item.items() for each in _schemas_in(key, value)]
            )
    return tuple(found)


def _schemas_in(keyword: str, value: Any) -> Iterable[Any]:
    """Return the subschemas in the value of a JSON Schema keyword; none without any."""
    if keyword in _SCHEMAS_BY_NAME and isinstance(value, Mapping):
        return value.values()
    return () if keyword in _WITHOUT_SCHEMAS else (value,)


DEFINITIONS = ("$defs", "definitions")

_ANNOTATIONS = frozenset(
    (
        *("title", "description", "default", "examples", "example", "$comment", "deprecated"),
        *("readOnly", "writeOnly", "contentEncoding", "contentMediaType", "contentSchema"),
        "$dynamicAnchor",
    )
)
_VALUES = frozenset({"enum", "const", "required", "type"})
_NAMED_SCHEMAS = frozenset({"properties", "patternProperties", "dependentSchemas", *DEFINITIONS})
_COUNTS = frozenset(
    (
        *("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties"),
        *("minContains", "maxContains"),
    )
)
_LENGTHS = ("minLength", "maxLength")
_IN_PLACE = frozenset(
    ("allOf", "anyOf", "oneOf", "if", "$ref", "$dynamicRef", "$recursiveRef", "dependentSchemas")
)
# Up to draft 7 a reference has no keywords beside it.
_OLD_DRAFT = re.compile(r"http://json-schema\.org/draft-0[3-7]/schema")
_BESIDE_REFERENCE = frozenset({"$ref", "$schema", "$id", "id", *DEFINITIONS})
_MOST_LETTERS = 1 << 16
"""Largest total number of characters in a schema's patterns, and in keywords made from property
names."""
_MAX_REFERENCES = 8
MOST_HELD_LETTERS = 1 << 13
"""Largest value of minLength and maxLength. A lexer can have the states to count this number of
characters of any kind."""
_PLAIN = re.compile("[ -~]*")
_SHOWN = 40
"""Largest number of characters of a name, and of names in a path, shown in an error."""
# Patterns of zod's email and pydantic's Decimal. The look-aheads rule out an empty part between
# dots, and a number without a digit.
_KNOWN_PATTERNS = {
    r"^(?!\.)(?!.*\.\.)([A-Za-z0-9_'+\-\.]*)[A-Za-z0-9_+-]@([A-Za-z0-9][A-Za-z0-9\-]*\.)+"
    r"[A-Za-z]{2,}$": r"^([A-Za-z0-9_'+\-]+\.)*[A-Za-z0-9_'+\-]*[A-Za-z0-9_+\-]@"
    r"([A-Za-z0-9][A-Za-z0-9\-]*\.)+[A-Za-z]{2,}$",
    r"^(?!^[-+.]*$)[+-]?0*\d*\.?\d*$": r"^[+-]?(\d+\.?\d*|\.\d+)$",
}


def held_schema(schema: Any) -> Any:
    """Return a caller's JSON schema, rewritten for llguidance. Raises GrammarError, and the message
    names the keyword."""
    return _Holding(schema).of(schema)


def held_pattern(pattern: str) -> str:
    """Return a JSON Schema pattern in the syntax of Rust's regex crate. Two well-known patterns
    with look-aheads have a fixed translation. Raises GrammarError."""
    return rust_pattern(_KNOWN_PATTERNS.get(pattern, pattern))


def referred(reference: Any, root: Any) -> Any:
    """Return the part of the schema `root` named by a reference; None if it does not exist."""
    if not isinstance(reference, str) or not reference.startswith("#"):
        return None
    if reference == "#":
        return root
    if not reference.startswith("#/"):
        return None
    for name in reference[2:].split("/", 64):
        name = name.replace("~1", "/").replace("~0", "~")
        if isinstance(root, Mapping):
            root = root.get(name)
        elif isinstance(root, list) and name.isdecimal() and len(name) < 8:
            root = root[int(name)] if int(name) < len(root) else None
        else:
            return None
    return root


def has_references(schema: Any) -> bool:
    return any(True for _ in _references(schema))


def rooted(schema: dict[str, Any]) -> dict[str, Any]:
    """Return a held schema with all references leading into its definitions; unchanged if they do
    already. Then each part of it can be used with the definitions alone."""
    if all(_leads_into_definitions(part["$ref"]) for part in _references(schema)):
        return schema
    own = schema.get("$defs")
    definitions = own if isinstance(own, Mapping) else {}
    name = "parameters"
    while name in definitions:
        name += "_"
    moved = _moved(schema, f"#/$defs/{name}")
    whole = {key: value for key, value in moved.items() if key not in DEFINITIONS}
    return {**moved, "$defs": {**moved.get("$defs", {}), name: whole}}


def _leads_into_definitions(reference: Any) -> bool:
    into = tuple(f"#/{name}/" for name in DEFINITIONS)
    return not isinstance(reference, str) or (
        reference.startswith(into) or not (reference == "#" or reference.startswith("#/"))
    )


def _references(schema: Any) -> Iterator[Mapping[str, Any]]:
    """Yield the subschemas with a `$ref` to another schema."""
    left = [schema]
    while left:
        item = left.pop()
        if isinstance(item, list):
            left += item
        elif isinstance(item, Mapping):
            if isinstance(item.get("$ref"), str):
                yield item
            left += [value for key, value in item.items() if key not in _VALUES]


def _moved(schema: Any, place: str) -> Any:
    """Return the schema with references to the whole schema changed to references below `place`."""
    if isinstance(schema, list):
        return [_moved(item, place) for item in schema]
    if not isinstance(schema, Mapping):
        return schema
    made = {key: value if key in _VALUES else _moved(value, place) for key, value in schema.items()}
    if not _leads_into_definitions(made.get("$ref")):
        made["$ref"] = place + made["$ref"][1:]
    return made


class _Holding:
    """State during the rewriting of one schema. _letters: number of characters still allowed in
    patterns and property names."""

    def __init__(self, root: Any) -> None:
        self._root = root
        draft = root.get("$schema") if isinstance(root, Mapping) else None
        self._alone = isinstance(draft, str) and bool(_OLD_DRAFT.match(draft))
        self._letters = _MOST_LETTERS
        self._place: list[str] = []
        """Keys and list indices on the path to the current subschema."""

    def of(self, schema: Any) -> Any:
        if not isinstance(schema, Mapping):
            return schema
        made: dict[str, Any] = {}
        for keyword, value in _meant(schema, self._alone).items():
            self._place.append(keyword)
            if keyword in _LENGTHS:
                self._check_length(keyword, value, schema)
            if keyword == "pattern" and isinstance(value, str):
                made[keyword] = self._pattern(value)
            elif keyword in _VALUES:
                made[keyword] = value
            elif keyword == "patternProperties" and isinstance(value, Mapping):
                made[keyword] = {
                    self._pattern(key): self._at(key, item) for key, item in value.items()
                }
            elif keyword in _NAMED_SCHEMAS and isinstance(value, Mapping):
                made[keyword] = {key: self._at(key, item) for key, item in value.items()}
            elif isinstance(value, list):
                made[keyword] = [self._at(str(at), item) for at, item in enumerate(value)]
            elif keyword in _COUNTS and isinstance(value, float) and value.is_integer():
                made[keyword] = int(value)
            else:
                made[keyword] = self.of(value)
            self._place.pop()
        if "propertyNames" in made:
            self._name_properties(made)
        return made

    def _at(self, name: str, schema: Any) -> Any:
        """Return a subschema inside a keyword's value, rewritten. name: its key there."""
        self._place.append(name)
        made = self.of(schema)
        self._place.pop()
        return made

    def _check_length(self, keyword: str, value: Any, schema: Mapping[str, Any]) -> None:
        """Raise GrammarError if minLength or maxLength is too large for a lexer to count."""
        kinds = schema.get("type", "string")
        is_count = isinstance(value, int | float) and not isinstance(value, bool)
        is_text = isinstance(kinds, str | list) and "string" in kinds
        if is_count and is_text and value > MOST_HELD_LETTERS:
            names = (
                name[:_SHOWN] if _PLAIN.fullmatch(name[:_SHOWN]) else "?"
                for name in self._place[-1 - _SHOWN : -1]
            )
            place = ".".join(names) or "the schema"
            raise GrammarError(
                f"{keyword} of {place} is {value!r:.40}: strings of at most {MOST_HELD_LETTERS} "
                f"letters are counted, so write at most that, or leave {keyword} out"
            )

    def _pattern(self, pattern: str) -> str:
        self._take(len(pattern))
        made = held_pattern(pattern)
        self._take(len(made))
        return made

    def _take(self, letters: int) -> None:
        self._letters -= letters
        if self._letters < 0:
            raise GrammarError("patterns and propertyNames are too long: write fewer of them")

    def _name_properties(self, schema: dict[str, Any]) -> None:
        """Replace the keyword propertyNames by other keywords with the same effect, if possible."""
        names = _without(schema["propertyNames"], ("type", "format"), "string")
        for _ in range(_MAX_REFERENCES):
            if not isinstance(names, Mapping) or set(names) != {"$ref"}:
                break
            names = _without(referred(names["$ref"], self._root), ("type", "format"), "string")
        if names is True or names == {}:
            del schema["propertyNames"]
            return
        if not isinstance(names, Mapping) or len(names) != 1 or schema.get("patternProperties"):
            return
        values = [names["const"]] if "const" in names else names.get("enum")
        others = schema.get("additionalProperties", True)
        own = schema.get("properties")
        own = own if isinstance(own, Mapping) else {}
        if isinstance(values, list):
            keys = dict.fromkeys(value for value in values if isinstance(value, str))
            new = [key for key in keys if key not in own]
            self._take(len(new) * _size(others, self._letters))
            kept = {key: item if key in keys else False for key, item in own.items()}
            schema["properties"] = {**kept, **dict.fromkeys(new, others)}
        elif isinstance(names.get("pattern"), str) and not own:
            # A pattern found through a reference is not translated yet.
            pattern = names["pattern"]
            is_own = names == _without(schema["propertyNames"], ("type", "format"), "string")
            schema["patternProperties"] = {pattern if is_own else self._pattern(pattern): others}
        else:
            return
        schema["additionalProperties"] = False
        del schema["propertyNames"]


def _meant(schema: Mapping[str, Any], alone: bool) -> Mapping[str, Any]:
    """Return the keywords with a restriction of values. alone: true if keywords next to a `$ref`
    have no meaning, as in old drafts."""
    if alone and "$ref" in schema:
        return {key: value for key, value in schema.items() if key in _BESIDE_REFERENCE}
    kept = {
        key: value
        for key, value in schema.items()
        if key not in _ANNOTATIONS and not _says_nothing(key, value, schema)
    }
    if not _IN_PLACE & schema.keys() and "contains" not in schema:
        # No other schema applies to the same value.
        if "unevaluatedProperties" in kept:
            kept["additionalProperties"] = kept.pop("unevaluatedProperties")
        if "unevaluatedItems" in kept and "items" not in kept:
            kept["items"] = kept.pop("unevaluatedItems")
    return kept


def _says_nothing(keyword: str, value: Any, schema: Mapping[str, Any]) -> bool:
    """Return true if the keyword accepts every value in this schema, so it can be left out."""
    match keyword:
        case "format":
            return isinstance(value, str) and value not in FORMATS
        case "uniqueItems" | "not":
            return value is False
        case "contains":
            return schema.get("minContains") == 0 and "maxContains" not in schema
        case "minContains":
            return "contains" not in schema or value == 0
        case "maxContains":
            return "contains" not in schema
        case "then" | "else":
            return "if" not in schema
        case "if":
            return not {"then", "else"} & schema.keys()
        case "propertyNames":
            return _takes_all(value)
        case "dependentRequired" | "dependentSchemas" | "dependencies":
            return isinstance(value, Mapping) and all(map(_takes_all, value.values()))
        case "unevaluatedItems":
            return _takes_all(value) or isinstance(schema.get("items"), Mapping | bool)
        case "unevaluatedProperties":
            return _takes_all(value) or "additionalProperties" in schema
    return False


def _takes_all(value: Any) -> bool:
    return value is True or value in ({}, [])


def _without(schema: Any, keywords: tuple[str, ...], only: str) -> Any:
    """Return a schema for property names without keywords true of every name."""
    if not isinstance(schema, Mapping) or schema.get("type", only) != only:
        return schema
    return {
        key: value
        for key, value in schema.items()
        if key not in keywords and key not in _ANNOTATIONS
    }


def _size(schema: Any, most: int) -> int:
    """Return the number of values and characters in a schema. Counting stops beyond `most`."""
    left, found = [schema], 0
    while left and found <= most:
        item = left.pop()
        found += 1
        if isinstance(item, Mapping):
            left += item.values()
        elif isinstance(item, list):
            left += item
        elif isinstance(item, str):
            found += len(item)
    return found
