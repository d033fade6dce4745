"""The arguments of a tool's calls between tags, as rules of a grammar.

A held schema (model/grammar/held_schema.py) says which objects they are: alternatives of named
properties, in the schema's order. A property that no name says comes last, and once: a reader takes
a second one of the same name for a part of the first.
"""

from collections.abc import Generator, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from tasuki.model.grammar.grammar import GrammarError
from tasuki.model.grammar.held_schema import DEFINITIONS, has_references, held_schema, rooted
from tasuki.server.errors import InvalidField
from tasuki.server.text.parsing.call_reader import LONGEST_NAME
from tasuki.server.text.parsing.parameter_types import ANY, json_types, parameter_schemas

from .asked_grammar import literal
from .object_branches import Branch, ObjectBranches
from .schema_visits import SchemaVisits
from .tagged_text import parameter_rules
from .tagged_value import ShapeReader

END_OF_VALUE = "\n</parameter>\n"
EMPTY = '""'
_MOST_COUNTED = 1 << 10
"""Rules of one count of properties."""
# Of a parameter that no schema names.
_NAME = r"[^\s>\x00-\x1f]([^>\x00-\x1f]{0,62}[^\s>\x00-\x1f])?"
_Made: TypeAlias = Generator[str, None, str | None]


class TaggedArguments:
    """One tool's. One grammar, one thread."""

    def __init__(self, field: str, rule: str, function: Mapping[str, Any], parameters: Any) -> None:
        """field: of the request, as errors name it. rule: begins the names of the rules.
        parameters: the function's schema. Raises InvalidField."""
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
        # By name and schemas: a rule; None where the parameter has no value.
        self._rules: dict[tuple[str, tuple[int, ...]], str | None] = {}
        self._counts = 0

    @property
    def ignored(self) -> tuple[str, ...]:
        """Return the formats of strings that stand without quotes, once their rules are made: no
        rule holds them."""
        return tuple(self._shapes.formats)

    def rules(self, opening: str, closing: str) -> Iterator[str]:
        """Yield the rules of a call. opening, closing: around its arguments, as they stand in a
        rule. Raises InvalidField."""
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
        """Yield a parameter's rules; return the first's name, or None where it has no value."""
        if not _can_be_read(name):
            return None
        opening = literal(f"<parameter={name}>\n")
        read_as = json_types(self._read[name], self._read) if name in self._read else ANY
        return (yield from self._value(name, opening, schemas, read_as))

    def _any_other(self, branch: Branch) -> _Made:
        """Yield the rules of a parameter of any other name."""
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
        """Yield rules that count the parameters where their number is bounded. Return what stands
        for them in a rule; None where no number is right."""
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
    """Whether a reader takes the name of a parameter as it is."""
    is_short = 0 < len(name) <= LONGEST_NAME
    return is_short and name == name.strip() and not {">", "\n"} & set(name)


def _both(schemas: tuple[Any, ...]) -> Any:
    return schemas[0] if len(schemas) == 1 else {"allOf": list(schemas)} if schemas else True


def _standing_alone(schema: Any, root: Mapping[str, Any]) -> dict[str, Any]:
    """The schema of a parameter with the definitions that it may refer to."""
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
