"""One table of fields turns a value into its protobuf message, and a message into its value.

`Wire` pairs the fields of a dataclass or named tuple with the fields of a message, by name. It
compiles both functions once, when a module makes the table. Bounds are metadata of the value's
fields, as in `tokens: Annotated[int, bound]`. `bounded()` returns the table for a peer's messages,
with each field held to its bound. A bound raises the typed error naming the field
(transfer/peer_values.py).

Invariant: a table names every field of both sides. A new field without an entry is a TypeError at
import. So is a field optional on one side only. Pure.

Some messages are written by hand because a table is slower. They are chunks of tokens (filled in
place), layer chunks, progress in heartbeats, and names of usable prefixes (stored as columns).
Others are, because a table is longer: messages made of several values, such as Node and Load.
"""

from collections.abc import Callable, Iterable, Mapping
from copy import copy
from dataclasses import dataclass
from enum import Enum
from operator import attrgetter
from typing import (
    Annotated,
    Any,
    Concatenate,
    Generic,
    TypeAlias,
    TypeVar,
    get_args,
    get_origin,
    get_type_hints,
)

from google.protobuf.message import Message  # type: ignore[import-untyped]

from .peer_values import Bound

ValueT = TypeVar("ValueT")
MessageT = TypeVar("MessageT", bound=Message)
Turn: TypeAlias = Callable[[Any], Any]


@dataclass(frozen=True)
class Codec:
    """Functions for reading and writing one field; None: the value is taken unchanged. name: name
    of the field in the message, if it differs from the value's."""

    read: Turn | None = None
    write: Turn | None = None
    name: str = ""


@dataclass(frozen=True)
class _Field:
    """Pair of a value's field and a message's field. name: the message's field. is_optional: True
    if a missing field is read as None. container: type for a repeated field. bound: check from the
    metadata of the value's field."""

    name: str
    codec: Codec
    is_optional: bool
    container: type | None
    bound: Bound | None

    def read(self, bound: "Bound | Wire[Any, Any] | None", shown: str) -> Turn | None:
        """Return the function for reading the field; None if it is read unchanged. bound: check of
        the read value. shown: the field's name in errors."""
        if isinstance(bound, Wire):
            return _nested(bound, self.container).read
        read = self.codec.read or self.container
        if bound is None or read is None:
            return read if bound is None else lambda given: bound(given, shown)
        return lambda given: bound(read(given), shown)


class Wire(Generic[ValueT, MessageT]):
    """Table of the fields of a value and its message, with the functions to convert both ways.
    REQUIRES: field names are plain identifiers, because the functions' source text is made of
    them."""

    def __init__(
        self,
        value: type[ValueT],
        message: type[MessageT],
        apart: Iterable[str] = (),
        **codecs: "Codec | Wire[Any, Any]",
    ) -> None:
        """value, message: types of both sides. apart: names of fields left to the table's callers.
        codecs: conversion of a field, by the value's field name; a table converts a nested message.
        Raises TypeError if a field has no pair."""
        self.message = message
        self._value = value
        self._fields = _paired(value, message, frozenset(apart), codecs)
        self.to_wire: Callable[Concatenate[ValueT, ...], MessageT] = _writer(message, self._fields)
        """Function from a value, and the message's fields left apart by name, to the message."""
        self.from_wire: Callable[Concatenate[MessageT, ...], ValueT] = _reader(
            value,
            self._fields,
            {name: field.read(None, "") for name, field in self._fields.items()},
        )
        """Function from a message to its value. It takes the message, and the value's fields left
        apart, by name. Raises the errors of the checks."""

    def bounded(
        self, prefix: str, judge: Turn | None = None, **bounds: "Bound | Wire[Any, Any]"
    ) -> "Wire[ValueT, MessageT]":
        """Return this table for a peer's messages: each field is checked by the bound in the
        value's metadata. prefix: prefix of field names in errors. judge: function taking the whole
        value last, and returning the value to keep. bounds: other checks, by the value's field
        name; a table replaces the field's own table. Raises TypeError on an unknown name in
        `bounds`."""
        if unknown := bounds.keys() - self._fields.keys():
            raise TypeError(f"{self._value.__name__} has no fields {sorted(unknown)} to bound")
        table = copy(self)
        reads = {
            name: field.read(bounds.get(name, field.bound), f"{prefix}.{field.name}")
            for name, field in self._fields.items()
        }
        table.from_wire = _reader(self._value, self._fields, reads, judge)
        return table


def _writer(message: type[Message], fields: Mapping[str, _Field]) -> Turn:
    scope: dict[str, Any] = {"message": message}
    entries = []
    for name, field in fields.items():
        entry = f"value.{name}"
        if field.codec.write is not None:
            scope[f"write_{name}"] = field.codec.write
            entry = f"None if {entry} is None else write_{name}({entry})"
        entries.append(f"{field.name}={entry}")
    turn: Turn = eval(f"lambda value, **apart: message({', '.join(entries)}, **apart)", scope)
    return turn


def _reader(
    value: type,
    fields: Mapping[str, _Field],
    reads: Mapping[str, Turn | None],
    judge: Turn | None = None,
) -> Turn:
    scope: dict[str, Any] = {"value": value, "judge": judge}
    entries = []
    for name, field in fields.items():
        entry = f"message.{field.name}"
        if reads[name] is not None:
            scope[f"read_{name}"] = reads[name]
            entry = f"read_{name}({entry})"
        if field.is_optional:
            entry += f" if message.HasField({field.name!r}) else None"
        entries.append(f"{name}={entry}")
    made = f"value({', '.join(entries)}, **apart)"
    turn: Turn = eval(f"lambda message, **apart: {f'judge({made})' if judge else made}", scope)
    return turn


def numbers_of(kind: type[Enum], wire: Any) -> dict[Any, Any]:
    """Return the wire number of each enum member, found by the member's name behind the prefix of
    the wire's enum. A member not named on the wire is left out."""
    prefix = wire.Name(0).removesuffix("UNSPECIFIED")
    numbers = dict(wire.items())
    names = {member: f"{prefix}{member.name}" for member in kind}
    return {member: numbers[name] for member, name in names.items() if name in numbers}


def numbered(kind: type[Enum], wire: Any, otherwise: Any = None) -> Codec:
    """Return a codec between an enum's members and their wire numbers. otherwise: the member for
    unknown numbers, and for members without a number; None: both are a KeyError."""
    numbers = numbers_of(kind, wire)
    members = {number: member for member, number in numbers.items()}
    if otherwise is None:
        return Codec(members.__getitem__, numbers.__getitem__)
    return Codec(
        lambda number: members.get(number, otherwise),
        lambda member: numbers.get(member, numbers[otherwise]),
    )


def rows(message: type[MessageT], *names: str) -> Codec:
    """Return a codec for plain tuples: each becomes a message with these two or more fields."""
    of_message = attrgetter(*names)
    return Codec(
        lambda messages: tuple(map(of_message, messages)),
        lambda values: [message(**dict(zip(names, value, strict=True))) for value in values],
    )


def _nested(table: "Wire[Any, Any]", container: type | None) -> Codec:
    if container is None:
        return Codec(table.from_wire, table.to_wire)
    return Codec(
        lambda messages: tuple(map(table.from_wire, messages)),
        lambda values: [*map(table.to_wire, values)],
    )


def _paired(
    value: type,
    message: type[Message],
    apart: frozenset[str],
    codecs: "Mapping[str, Codec | Wire[Any, Any]]",
) -> dict[str, _Field]:
    """Return the pairs, by the value's field name. Raises TypeError if a field has none."""
    unpaired = {field.name: field for field in message.DESCRIPTOR.fields}
    hints = get_type_hints(value, include_extras=True)
    strange = apart - unpaired.keys() - hints.keys()
    paired = {}
    for name, hint in hints.items():
        if name in apart:
            continue
        is_optional = type(None) in get_args(hint)
        if is_optional:
            hint = get_args(hint)[0]
        bound = None
        if get_origin(hint) is Annotated:
            hint, bound = get_args(hint)
        container = {tuple: tuple, dict: dict, Mapping: dict}.get(get_origin(hint))
        codec = codecs.get(name, Codec())
        if isinstance(codec, Wire):
            codec = _nested(codec, container)
        field = unpaired.pop(codec.name or name, None)
        if field is None:
            raise TypeError(f"{message.__name__} has no field for {value.__name__}.{name}")
        is_nested = field.message_type is not None and container is None
        if name not in codecs and (is_nested or field.has_presence != is_optional):
            raise TypeError(f"{value.__name__}.{name} needs a codec")
        paired[name] = _Field(
            field.name, codec, is_optional and field.has_presence, container, bound
        )
    if left := (unpaired.keys() - apart) | (codecs.keys() - paired.keys()) | strange:
        raise TypeError(f"{value.__name__} and {message.__name__} leave {sorted(left)} over")
    return paired
