"""The objects that a schema takes, as alternatives of named properties.

Pure functions over held schemas (model/grammar/held_schema.py). References, allOf, anyOf and oneOf
are followed; what no list of properties says is refused by its keyword.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

from tasuki.model.grammar.held_schema import referred
from tasuki.server.errors import InvalidField
from tasuki.server.text.json_bounds import MAX_DEPTH
from tasuki.server.text.parsing.parameter_types import json_types

from .schema_visits import SchemaVisits

MOST_BRANCHES = 64
_PARTS = 64
"""Properties or values that count as one schema more."""
# Of a property by which branches differ: of other types, equal values may look different.
_CONSTANTS = frozenset({str, bool, int, type(None)})
_NOT_HELD = (
    *("not", "if", "$dynamicRef", "$recursiveRef", "patternProperties", "propertyNames"),
    *("dependentRequired", "dependentSchemas", "dependencies", "unevaluatedProperties"),
)


@dataclass(frozen=True)
class Branch:
    """properties: by name, the schemas that its value follows, all of them. required: names, in
    order. others: the schemas of every other property; None: no schema speaks of them. least,
    most: properties."""

    properties: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    required: Mapping[str, None] = field(default_factory=dict)
    others: tuple[Any, ...] | None = None
    least: int = 0
    most: int | None = None

    def of(self, name: str) -> tuple[Any, ...]:
        """Return the schemas of a property's value."""
        return self.properties.get(name, self.others or ())

    def both(self, other: "Branch") -> "Branch":
        names = dict.fromkeys((*self.properties, *other.properties))
        properties = {name: _together(self.of(name), other.of(name)) for name in names}
        others = [each.others for each in (self, other) if each.others is not None]
        most = [each.most for each in (self, other) if each.most is not None]
        return Branch(
            properties,
            {**self.required, **other.required},
            _together(*others) if others else None,
            max(self.least, other.least),
            min(most) if most else None,
        )


def _together(*schemas: tuple[Any, ...]) -> tuple[Any, ...]:
    """Each schema once: a branch may be met again by way of another."""
    return tuple({id(schema): schema for some in schemas for schema in some}.values())


class ObjectBranches:
    """Of one tool's parameters. One grammar, one thread."""

    def __init__(self, field: str, root: Mapping[str, Any], visits: SchemaVisits) -> None:
        """field: of the request, as errors name it. root: for references into it."""
        self._field = field
        self._root = root
        self._visits = visits

    def of(self, place: str, schema: Any, depth: int = 0) -> list[Branch]:
        """place: of the schema, as errors name it. depth: schemas around it. Raises InvalidField
        for what cannot be held."""
        if schema is False:
            return []
        if not isinstance(schema, Mapping):
            return [Branch()]
        if depth > MAX_DEPTH:
            self._refuse(f"{place} nests or refers to itself: use {MAX_DEPTH} levels")
        self._visits.look_at(schema)
        for keyword in _NOT_HELD:
            if schema.get(keyword, {}) != {}:
                self._refuse(f"{keyword} of {place} is not supported here")
        kind = schema.get("type", "object")
        if kind != "object" and "object" not in json_types({"type": kind}, {}):
            return []
        found = [self._own(place, schema)]
        for values in ([schema["const"]] if "const" in schema else None, schema.get("enum")):
            if isinstance(values, list):
                found = self._each(place, found, _of_values(values))
        if "$ref" in schema:
            target = referred(schema["$ref"], self._root)
            if target is None:
                self._refuse(f"$ref of {place} must lead into the tool's own schema")
            found = self._each(place, found, self.of(place, target, depth + 1))
        for item in _listed(schema, "allOf"):
            found = self._each(place, found, self.of(place, item, depth + 1))
        for keyword in ("anyOf", "oneOf"):
            if keyword in schema:
                inner = [self.of(place, item, depth + 1) for item in _listed(schema, keyword)]
                if keyword == "oneOf":
                    self._check_disjoint(place, inner)
                found = self._each(place, found, [branch for some in inner for branch in some])
        return found

    def _own(self, place: str, schema: Mapping[str, Any]) -> Branch:
        properties = schema.get("properties")
        required = schema.get("required")
        counts = [schema.get(keyword) for keyword in ("minProperties", "maxProperties")]
        if not all(count is None or type(count) is int for count in counts):
            self._refuse(f"minProperties and maxProperties of {place} must be integers")
        others = schema.get("additionalProperties")
        return Branch(
            {name: (item,) for name, item in properties.items()}
            if isinstance(properties, Mapping)
            else {},
            dict.fromkeys(
                name
                for name in (required if isinstance(required, list) else ())
                if isinstance(name, str)
            ),
            None if others is None else (others,),
            counts[0] or 0,
            counts[1],
        )

    def _each(
        self, place: str, branches: Sequence[Branch], others: Sequence[Branch]
    ) -> list[Branch]:
        """Every branch with every other."""
        if len(branches) * len(others) > MOST_BRANCHES:
            self._refuse(f"{place} has over {MOST_BRANCHES} alternatives: write fewer of them")
        for branch in branches:
            parts = len(others) * (len(branch.properties) + len(branch.required))
            self._visits.repeat(len(others) - 1 + parts // _PARTS)
        return [one.both(other) for one in branches for other in others]

    def _check_disjoint(self, place: str, options: Sequence[Sequence[Branch]]) -> None:
        """Raises InvalidField where a call might follow two of the options."""
        if sum(map(len, options)) > MOST_BRANCHES:
            self._refuse(f"{place} has over {MOST_BRANCHES} alternatives: write fewer of them")
        constants: dict[int, Mapping[str, frozenset[str]]] = {}
        for some in options:
            for branch in some:
                self._visits.repeat(1 + len(branch.required) // _PARTS)
                constants[id(branch)] = self._constants(branch)
        for number, some in enumerate(options):
            for one in some:
                for other in (branch for later in options[number + 1 :] for branch in later):
                    if not _are_disjoint(one, other, constants[id(one)], constants[id(other)]):
                        self._refuse(
                            f"oneOf of {place} is supported where a required property differs in "
                            "all its branches: write anyOf, or such branches"
                        )

    def _constants(self, branch: Branch) -> dict[str, frozenset[str]]:
        """By required properties that take few values: these, as JSON."""
        found: dict[str, frozenset[str]] = {}
        for name in branch.required:
            for schema in branch.of(name):
                if isinstance(schema, Mapping) and "$ref" in schema:
                    schema = referred(schema["$ref"], self._root)
                values = schema if isinstance(schema, Mapping) else {}
                listed = [values["const"]] if "const" in values else values.get("enum")
                if isinstance(listed, list) and all(type(value) in _CONSTANTS for value in listed):
                    self._visits.repeat(1 + len(listed) // _PARTS)
                    texts = frozenset(map(json.dumps, listed))
                    found[name] = found.get(name, texts) & texts
        return found

    def _refuse(self, complaint: str) -> NoReturn:
        raise InvalidField(self._field, f"cannot be followed: {complaint}")


def _are_disjoint(
    one: Branch,
    other: Branch,
    of_one: Mapping[str, frozenset[str]],
    of_other: Mapping[str, frozenset[str]],
) -> bool:
    if any(name in of_other and not values & of_other[name] for name, values in of_one.items()):
        return True
    return any(
        False in second.of(name)
        for first, second in ((one, other), (other, one))
        for name in first.required
    )


def _listed(schema: Mapping[str, Any], keyword: str) -> Iterable[Any]:
    items = schema.get(keyword)
    return items if isinstance(items, list) else ()


def _of_values(values: Iterable[Any]) -> list[Branch]:
    return [
        Branch(
            {name: ({"const": item},) for name, item in value.items()},
            dict.fromkeys(value),
            (False,),
        )
        for value in values
        if isinstance(value, Mapping)
    ]
