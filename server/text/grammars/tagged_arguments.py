"""Lark rules for the arguments of a tool's calls, if the template writes them between tags.

A schema with supported keywords (model/grammar/held_schema.py) defines the accepted objects as
branches: alternatives of named properties, in the schema's order. A property with a name outside
the schema comes last, and only one may come. The call parser would take a second property of the
same name for text of the first.

ObjectBranches: the branches of a schema. Pure functions over such schemas. References, allOf, anyOf
and oneOf are followed. A keyword beyond a list of properties is rejected by its name.
"""

import json
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn, TypeAlias

from tasuki.model.grammar.grammar import GrammarError
from tasuki.model.grammar.held_schema import (
    DEFINITIONS,
    has_references,
    held_schema,
    referred,
    rooted,
)
from tasuki.server.errors import InvalidField
from tasuki.server.text.json_reading import MAX_DEPTH
from tasuki.server.text.parsing.call_reader import LONGEST_NAME
from tasuki.server.text.parsing.parameter_types import ANY, json_types, parameter_schemas

from .asked_grammar import literal
from .tagged_text import parameter_rules
from .tagged_value import SchemaVisits, ShapeReader

MOST_BRANCHES = 64
_PARTS = 64
"""Number of properties or values counted as one more schema in SchemaVisits."""
# Types of a property able to tell branches apart. Equal values of other types may be written
# differently.
_CONSTANTS = frozenset({str, bool, int, type(None)})
_NOT_HELD = (
    *("not", "if", "$dynamicRef", "$recursiveRef", "patternProperties", "propertyNames"),
    *("dependentRequired", "dependentSchemas", "dependencies", "unevaluatedProperties"),
)


@dataclass(frozen=True)
class Branch:
    """One alternative of an object's properties. properties: by name, all schemas a property's
    value must follow. required: names of required properties, in order. others: schemas for every
    other property; None: the schema does not mention others. least, most: bounds of the number of
    properties; None: no bound."""

    properties: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    required: Mapping[str, None] = field(default_factory=dict)
    others: tuple[Any, ...] | None = None
    least: int = 0
    most: int | None = None

    def of(self, name: str) -> tuple[Any, ...]:
        """Return the schemas the value of property `name` must follow."""
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
    """Return all schemas of the tuples, each object once. Combining branches may meet a schema
    twice."""
    return tuple({id(schema): schema for some in schemas for schema in some}.values())


class ObjectBranches:
    """Finder of the branches (alternatives of properties) in the schema of one tool's parameters.
    One grammar, one thread."""

    def __init__(self, field: str, root: Mapping[str, Any], visits: SchemaVisits) -> None:
        """field: the request's field, for errors. root: the whole schema, for references into it.
        visits: bound on schemas read repeatedly."""
        self._field = field
        self._root = root
        self._visits = visits

    def of(self, place: str, schema: Any, depth: int = 0) -> list[Branch]:
        """Return the branches (alternatives of properties) accepted by a schema. place: position of
        the schema, for errors. depth: number of schemas around it. Raises InvalidField for a schema
        the grammar cannot enforce."""
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
        """Return each branch combined with each of `others`: an object must follow both. place:
        position of the schema, for errors. Raises InvalidField for too many combinations."""
        if len(branches) * len(others) > MOST_BRANCHES:
            self._refuse(f"{place} has over {MOST_BRANCHES} alternatives: write fewer of them")
        for branch in branches:
            parts = len(others) * (len(branch.properties) + len(branch.required))
            self._visits.repeat(len(others) - 1 + parts // _PARTS)
        return [one.both(other) for one in branches for other in others]

    def _check_disjoint(self, place: str, options: Sequence[Sequence[Branch]]) -> None:
        """Raise InvalidField if an object might follow two of the options of a oneOf. options:
        branches of each option. place: position of the schema, for errors."""
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
        """Return the allowed values of a branch's required properties, as JSON texts, by property
        name. Only properties with `const` or `enum` are included."""
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


END_OF_VALUE = "\n</parameter>\n"
EMPTY = '""'
_MOST_COUNTED = 1 << 10
"""Largest number of rules made to count an object's properties."""
# Name of a parameter in no schema.
_NAME = r"[^\s>\x00-\x1f]([^>\x00-\x1f]{0,62}[^\s>\x00-\x1f])?"
_Made: TypeAlias = Generator[str, None, str | None]


class TaggedArguments:
    """Maker of the Lark rules for the arguments of one tool, written between tags. One grammar, one
    thread."""

    def __init__(self, field: str, rule: str, function: Mapping[str, Any], parameters: Any) -> None:
        """field: the request's field, for errors. rule: prefix of the rules' names. function: the
        tool's function definition. parameters: JSON schema of its arguments. Raises
        InvalidField."""
        self._field = field
        self._rule = rule
        self._name = str(function["name"])
        self._read = parameter_schemas(self._name, [{"function": function}])
        try:
            self._root = rooted(held_schema(parameters))
        except GrammarError as error:
            complaint = f"cannot be followed: {self._name:.80}: {error}"
            raise InvalidField(field, complaint) from error
        visits = SchemaVisits(field)
        self._branches = ObjectBranches(field, self._root, visits)
        self._shapes = ShapeReader(field, self._root, visits)
        # By name and schemas: a rule; None if the parameter has no value.
        self._rules: dict[tuple[str, tuple[int, ...]], str | None] = {}
        self._counts = 0

    @property
    def ignored(self) -> tuple[str, ...]:
        """Return the `format` values of strings written without quotes, found while rules were
        made. No rule enforces them."""
        return tuple(self._shapes.formats)

    def rules(self, opening: str, closing: str) -> Iterator[str]:
        """Yield the rules of a call. opening, closing: Lark terms before and after its arguments.
        Raises InvalidField."""
        bodies = []
        for branch in self._branches.of(f"{self._name:.80}", self._root):
            parts: list[tuple[str, bool]] = []
            for name in {**branch.properties, **branch.required}:
                rule = yield from self._parameter(name, branch.of(name))
                parts += [(rule, name in branch.required)] if rule else []
            if len([rule for rule, is_required in parts if is_required]) < len(branch.required):
                continue
            if branch.others and False not in branch.others and branch.most != len(parts):
                rule = yield from self._any_other(branch)
                parts += [(rule, False)] if rule else []
            body = yield from self._counted(branch, parts)
            bodies += [] if body is None else [body]
        if not bodies:
            raise InvalidField(
                self._field,
                f"cannot be followed: no arguments of {self._name:.80} follow its schema",
            )
        inner = (
            bodies[0] if len(bodies) == 1 else f"({' | '.join(body or EMPTY for body in bodies)})"
        )
        yield f"{self._rule}: {opening} {inner} {closing}"

    def _parameter(self, name: str, schemas: tuple[Any, ...]) -> _Made:
        """Yield the rules of parameter `name`. Return the name of its first rule, or None if no
        value of the parameter can be written. schemas: schemas its value must follow."""
        if not _can_be_read(name):
            return None
        opening = literal(f"<parameter={name}>\n")
        read_as = json_types(self._read[name], self._read) if name in self._read else ANY
        return (yield from self._value(name, opening, schemas, read_as))

    def _any_other(self, branch: Branch) -> _Made:
        """Yield the rules of a parameter with a name outside the branch. Return the name of its
        first rule, or None if it can have no value."""
        named = " | ".join(literal(name) for name in branch.properties if name)
        name = f"(/{_NAME}/ & ~({named}))" if named else f"/{_NAME}/"
        terminal = f"{self._rule}_name_{len(self._rules)}".upper()
        yield f'{terminal}: "<parameter=" {name} ">\\n"'
        return (yield from self._value("", terminal, branch.others or (), ANY))

    def _value(
        self, name: str, opening: str, schemas: tuple[Any, ...], read_as: frozenset[str]
    ) -> _Made:
        key = opening, tuple(map(id, schemas))
        if key not in self._rules:
            rule = f"p{self._rule}_{len(self._rules)}"
            place = f"{self._name:.80}.{name:.80}"
            schema = _both(schemas)
            shape = self._shapes.of(place, schema, read_as)
            whole = _standing_alone(schema, self._root)
            made = False
            try:
                for line in parameter_rules(rule, opening, END_OF_VALUE, shape, read_as, whole):
                    made = True
                    yield line
            except GrammarError as error:
                raise InvalidField(self._field, f"cannot be followed: {place}: {error}") from error
            self._rules[key] = rule if made else None
        return self._rules[key]

    def _counted(self, branch: Branch, parts: Sequence[tuple[str, bool]]) -> _Made:
        """Yield rules to count an object's parameters, if their number is bounded. Return the Lark
        term of all parameters; None if no number is valid. parts: for each parameter, the name of
        its rule and True if it is required."""
        required = [is_required for _, is_required in parts]
        most = len(parts) if branch.most is None else branch.most
        least, total = branch.least, len(parts)
        if sum(required) > most or least > total:
            return None
        if least <= sum(required) and most >= total:
            return " ".join(rule if is_required else f"{rule}?" for rule, is_required in parts)
        if total * (most + 1) > _MOST_COUNTED:
            raise InvalidField(
                self._field,
                f"cannot be followed: minProperties or maxProperties of {self._name:.80} is not "
                "supported beside so many properties",
            )
        self._counts += 1
        begun = f"n{self._rule}_{self._counts}"
        still_required = [sum(required[at:]) for at in range(total + 1)]

        def leads_on(at: int, count: int) -> bool:
            return count + still_required[at] <= most and count + total - at >= least

        for at, (rule, is_required) in enumerate(parts):
            for count in (count for count in range(at + 1) if leads_on(at, count)):
                ways = []
                if leads_on(at + 1, count + 1):
                    ways.append(f"{rule} {begun}_{at + 1}_{count + 1}")
                if not is_required and leads_on(at + 1, count):
                    ways.append(f"{begun}_{at + 1}_{count}")
                yield f"{begun}_{at}_{count}: {' | '.join(ways)}"
        for count in (count for count in range(total + 1) if leads_on(total, count)):
            yield f"{begun}_{total}_{count}: {EMPTY}"
        return f"{begun}_0_0"


def _can_be_read(name: str) -> bool:
    """Return True if the call parser takes the parameter's name unchanged from its tag."""
    is_short = 0 < len(name) <= LONGEST_NAME
    return is_short and name == name.strip() and not {">", "\n"} & set(name)


def _both(schemas: tuple[Any, ...]) -> Any:
    return schemas[0] if len(schemas) == 1 else {"allOf": list(schemas)} if schemas else True


def _standing_alone(schema: Any, root: Mapping[str, Any]) -> dict[str, Any]:
    """Return a parameter's schema together with the definitions it refers to. root: the tool's
    whole schema."""
    if not isinstance(schema, Mapping):
        return {}
    if not has_references(schema):
        return dict(schema)
    definitions = {name: root[name] for name in DEFINITIONS if name in root}
    return (
        {**definitions, "allOf": [schema]}
        if definitions.keys() & schema
        else {**definitions, **schema}
    )
