"""Values of a tool's parameters written between tags: strings without quotes, every other value as
JSON.

Pure functions over schemas with supported keywords (model/grammar/held_schema.py). A string is
excluded if the call parser would read its text as another value, outside the schema. The `format`
of a string is not enforced.

SchemaVisits bounds the work on schemas reached repeatedly by references. One grammar, one thread.
"""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from dataclasses import field as dataclass_field
from typing import Any, NoReturn

from tasuki.model.grammar.held_schema import referred
from tasuki.server.errors import InvalidField
from tasuki.server.text.json_reading import MAX_DEPTH, JsonDepth
from tasuki.server.text.parsing.parameter_types import ANY, json_of, json_types

from .asked_grammar import literal

_MOST_REPEATED = 1 << 11
_PARTS = 64
"""Number of keywords, values and characters of a schema counted as one more schema in
SchemaVisits."""


class SchemaVisits:
    """The schemas already read for one grammar, and a bound on reading schemas again."""

    def __init__(self, field: str) -> None:
        """field: the request's field, for errors."""
        self._field = field
        # With the schemas themselves, so no other object takes their ids.
        self._known: dict[int, tuple[Mapping[str, Any], int]] = {}
        self._left = _MOST_REPEATED

    def look_at(self, schema: Mapping[str, Any]) -> None:
        """Count a schema if it was read before, more for a large one. Raises InvalidField once too
        many schemas were read again."""
        known = self._known.get(id(schema))
        if known is None:
            self._known[id(schema)] = schema, 1 + _parts(schema) // _PARTS
        else:
            self.repeat(known[1])

    def repeat(self, schemas: int) -> None:
        """Count `schemas` more schemas as read again. Raises InvalidField once too many schemas
        were read again."""
        self._left -= schemas
        if self._left < 0:
            raise InvalidField(
                self._field,
                f"cannot be followed: references and branches lead to over {_MOST_REPEATED} "
                "schemas more than once: write fewer of them",
            )


def _parts(schema: Mapping[str, Any]) -> int:
    """Return the size of a schema without its inner schemas: its number of keywords, values and
    characters."""
    parts = len(schema)
    for value in schema.values():
        if isinstance(value, str | list | Mapping):
            parts += len(value)
        if isinstance(value, list):
            parts += sum(len(item) for item in value if isinstance(item, str))
    return parts


FREE = "\0"
"""Placeholder in Lark terms for all texts the call parser reads as strings. These texts depend on
the whole schema, so they are filled in later."""
_NUMBERS = frozenset({"integer", "number"})
_BOUNDING = {
    **dict.fromkeys(
        ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"), _NUMBERS
    ),
    **dict.fromkeys(
        ("items", "prefixItems", "additionalItems", "minItems", "maxItems", "uniqueItems"),
        frozenset({"array"}),
    ),
    **dict.fromkeys(("contains", "unevaluatedItems"), frozenset({"array"})),
    **dict.fromkeys(
        ("properties", "patternProperties", "additionalProperties", "required", "propertyNames"),
        frozenset({"object"}),
    ),
    **dict.fromkeys(("minProperties", "maxProperties", "dependentRequired"), frozenset({"object"})),
}
"""JSON types with some values excluded by a schema keyword, by keyword."""
_NOT_HELD = (
    *("not", "if", "$dynamicRef", "$recursiveRef", "dependentSchemas", "dependencies"),
    "unevaluatedProperties",
)
MOST_ASKED_LETTERS = 1 << 11
"""Largest `minLength` of a string the grammar can enforce, in characters."""
_ENDS = re.compile(r"(?<!\\)(?:\\\\)*\$$")
_TAGS = re.compile("</(parameter|function|tool_call)>")


@dataclass(frozen=True)
class Shape:
    """The values accepted by a schema, in the detail needed to write their texts.

    strings: Lark terms matched by the text of every accepted string. An empty tuple: strings are
    written only in quotes. None: no string is accepted. listed: the accepted strings, if the schema
    lists them; else None. words: accepted values among null, true and false. types: accepted types
    among integer, number, array and object. bounded: types with possibly some values excluded.
    """

    strings: tuple[str, ...] | None = (FREE,)
    listed: frozenset[str] | None = None
    words: frozenset[bool | None] = frozenset({None, True, False})
    types: frozenset[str] = _NUMBERS | {"array", "object"}
    bounded: frozenset[str] = frozenset()

    @property
    def all_types(self) -> frozenset[str]:
        words = {"null" if word is None else "boolean" for word in self.words}
        return self.types | words | ({"string"} if self.strings is not None else frozenset())

    def both(self, other: "Shape") -> "Shape":
        listed = [each.listed for each in (self, other) if each.listed is not None]
        return Shape(
            _all_terms(self.strings, other.strings, is_listed=bool(listed)),
            frozenset.intersection(*listed) if listed else None,
            self.words & other.words,
            self.types & other.types,
            self.bounded | other.bounded,
        )


NOTHING = Shape(None, None, frozenset(), frozenset())


def _all_terms(
    one: tuple[str, ...] | None, other: tuple[str, ...] | None, *, is_listed: bool
) -> tuple[str, ...] | None:
    """Return the Lark terms of strings accepted by two shapes together; None if one accepts no
    string. is_listed: one of the two lists its strings, so the placeholder FREE is left out."""
    if one is None or other is None:
        return None
    if not one or not other:
        return ()
    terms = dict.fromkeys((*one, *other))
    if is_listed and len(terms) > 1:
        terms.pop(FREE, None)
    return tuple(terms)


def either(shapes: Sequence[Shape]) -> Shape:
    """Return the shape of the values accepted by at least one of the shapes."""
    with_strings = [shape for shape in shapes if shape.strings is not None]
    terms = dict.fromkeys(joined(shape.strings) for shape in with_strings if shape.strings)
    strings: tuple[str, ...] | None = () if with_strings else None
    if terms:
        strings = (FREE,) if FREE in terms else (f"({' | '.join(terms)})",)
    listed = [shape.listed for shape in with_strings if shape.listed is not None]
    return Shape(
        strings,
        frozenset().union(*listed) if listed and len(listed) == len(with_strings) else None,
        frozenset().union(*(shape.words for shape in shapes)),
        frozenset().union(*(shape.types for shape in shapes)),
        frozenset().union(*(shape.bounded for shape in shapes)),
    )


def joined(terms: Sequence[str]) -> str:
    """Return a Lark term for the texts matching all terms."""
    return terms[0] if len(terms) == 1 else f"({' & '.join(terms)})"


@dataclass(frozen=True)
class ShapeReader:
    """A reader of the shapes (accepted values) of schemas. field: the request's field, for errors.
    root: the whole schema, for references into it. visits: bound on schemas read repeatedly.
    formats: `format` values of strings found so far. One grammar, one thread."""

    field: str
    root: Mapping[str, Any]
    visits: SchemaVisits
    formats: dict[str, None] = dataclass_field(default_factory=dict, init=False, compare=False)

    def of(self, place: str, schema: Any, read_as: frozenset[str], depth: int = 0) -> Shape:
        """Return the shape (accepted values) of a schema. place: position of the parameter, for
        errors. read_as: JSON types the call parser may read the parameter's text as. depth: number
        of schemas around this one. Raises InvalidField for a schema the grammar cannot enforce."""
        if schema is False:
            return NOTHING
        if not isinstance(schema, Mapping):
            return Shape()
        if depth > MAX_DEPTH:
            self._refuse(f"{place} nests or refers to itself: use {MAX_DEPTH} levels")
        self.visits.look_at(schema)
        for keyword in _NOT_HELD:
            if keyword in schema:
                self._refuse(f"{keyword} of {place} is not supported here")
        found = self._own(place, schema, read_as)
        if "$ref" in schema:
            target = referred(schema["$ref"], self.root)
            if target is None:
                self._refuse(f"$ref of {place} leads to no schema of the tool's own")
            found = found.both(self.of(place, target, read_as, depth + 1))
        for keyword in ("allOf", "anyOf", "oneOf"):
            items = schema.get(keyword)
            if not isinstance(items, list):
                continue
            shapes = [self.of(place, item, read_as, depth + 1) for item in items]
            if keyword == "oneOf":
                self._check_disjoint(place, shapes)
            if keyword != "allOf":
                shapes = [either(shapes)]
            for shape in shapes:
                found = found.both(shape)
        return found

    def _own(self, place: str, schema: Mapping[str, Any], read_as: frozenset[str]) -> Shape:
        """Return the shape (accepted values) of a schema without its references, allOf, anyOf and
        oneOf."""
        bounded = [types for keyword, types in _BOUNDING.items() if keyword in schema]
        terms = (FREE, *self._terms(place, schema))
        found = Shape(terms, bounded=frozenset().union(*bounded))
        if "type" in schema:
            found = found.both(_of_type(schema["type"]))
        for values in ([schema["const"]] if "const" in schema else None, schema.get("enum")):
            if isinstance(values, list):
                found = found.both(_of_values(values, read_as))
        if found.strings is not None and isinstance(schema.get("format"), str):
            self.formats[schema["format"]] = None
        return found

    def _terms(self, place: str, schema: Mapping[str, Any]) -> Iterable[str]:
        for keyword, value in schema.items():
            if keyword == "pattern" and isinstance(value, str):
                yield f"/{self._searched(place, value)}/"
            elif keyword in ("minLength", "maxLength"):
                if type(value) is not int or value < 0:
                    self._refuse(f"{keyword} of {place} must be an integer that is not negative")
                if keyword == "minLength" and value > MOST_ASKED_LETTERS:
                    self._refuse(
                        f"minLength of {place} is {value}: between tags at most "
                        f"{MOST_ASKED_LETTERS} letters can be asked for"
                    )
                bounds = f"{value}," if keyword == "minLength" else f"0,{value}"
                yield f"/(?s:.{{{bounds}}})/"

    def _check_disjoint(self, place: str, shapes: Sequence[Shape]) -> None:
        """Raise InvalidField if a text might follow two options of a oneOf. shapes: accepted values
        of each option. For values written as JSON, llguidance checks oneOf itself."""
        words: set[bool | None] = set()
        open_types: set[str] = set()
        listed: set[str] = set()
        with_strings = sum(shape.strings is not None for shape in shapes)
        for shape in shapes:
            strings = shape.listed if shape.strings is not None else frozenset()
            if (
                words & shape.words
                or open_types & (shape.types - shape.bounded)
                or (with_strings > 1 and (strings is None or listed & strings))
            ):
                self._refuse(
                    f"oneOf of {place} is supported where no value follows two of its branches: "
                    "write anyOf, or such branches"
                )
            words |= shape.words
            open_types |= shape.types - shape.bounded
            listed |= strings or frozenset()

    def _searched(self, place: str, pattern: str) -> str:
        """Return a regular expression of all texts containing a match of a schema's `pattern`.
        place: position of the parameter, for errors. Raises InvalidField for unsupported
        anchors."""
        begins, ends = pattern.startswith("^"), bool(_ENDS.search(pattern))
        inner = pattern[begins : len(pattern) - ends]
        anchors, alternates = _marks(inner)
        if anchors or ((begins or ends) and alternates):
            self._refuse(
                f"the pattern of {place} has anchors beside a |, or inside: write ^(...|...)$"
            )
        # A held pattern has no escape of a slash.
        inner = inner.replace("/", r"\/").replace("\n", r"\n").replace(FREE, r"\x00")
        before, behind = ("" if anchored else "(?s:.*)" for anchored in (begins, ends))
        return f"{before}({inner}){behind}"

    def _refuse(self, complaint: str) -> NoReturn:
        raise InvalidField(self.field, f"cannot be followed: {complaint}")


def _of_types(types: frozenset[str]) -> Shape:
    words: set[bool | None] = {None} if "null" in types else set()
    if "boolean" in types:
        words |= {True, False}
    strings = (FREE,) if "string" in types else None
    return Shape(strings, None, frozenset(words), types & Shape().types)


def _of_type(kind: Any) -> Shape:
    found = _BY_TYPE.get(kind) if isinstance(kind, str) else None
    return found or _of_types(json_types({"type": kind}, {}))


def _of_values(values: Sequence[Any], read_as: frozenset[str]) -> Shape:
    listed = [value for value in values if isinstance(value, str)]
    others = [value for value in values if not isinstance(value, str)]
    types = {name for value in others for name in json_types({"const": value}, {})}
    texts = [literal(text) for text in listed if _is_read_back(text, read_as)]
    strings = (f"({' | '.join(texts)})",) if texts else ()
    return Shape(
        # If a reader knows no type, every string can be written in quotes.
        strings if texts or (listed and read_as == ANY) else None,
        frozenset(listed),
        frozenset(value for value in others if value is None or isinstance(value, bool)),
        frozenset(types) & Shape().types,
        frozenset(types) & Shape().types,
    )


def _is_read_back(text: str, read_as: frozenset[str]) -> bool:
    """Return True if the call parser reads the plain text `text` as this same string. read_as: JSON
    types the parser may read it as."""
    if _TAGS.search(text):
        return False
    depth = JsonDepth()
    depth.add(text)
    return json_of(text, read_as, depth) == json.dumps(text, ensure_ascii=False)


def _marks(pattern: str) -> tuple[bool, bool]:
    """Return two flags of a regular expression: True if it has anchors, and True if it has a |
    outside of groups."""
    anchors = alternates = in_brackets = escaped = False
    depth = 0
    for letter in pattern:
        if escaped or letter == "\\":
            escaped = not escaped
        elif in_brackets:
            in_brackets = letter != "]"
        else:
            in_brackets = letter == "["
            anchors = anchors or letter in "^$"
            alternates = alternates or (letter == "|" and not depth)
            depth += {"(": 1, ")": -1}.get(letter, 0)
    return anchors, alternates


_BY_TYPE = {name: _of_types(json_types({"type": name}, {})) for name in ANY}
