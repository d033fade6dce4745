"""Typed access to the fields of a JSON request. An error (InvalidField) names the field and the
fix.

Pure; any thread. A null field counts as absent, as in OpenAI's clients.
"""

import json
import sys
from collections.abc import Collection, Mapping, Sequence
from typing import Any, TypeVar

import msgspec
from aiohttp import web

from tasuki.server.errors import InvalidField, InvalidRequest
from tasuki.server.http.errors import HttpRefusal
from tasuki.server.openapi.common_fields import IDS, MAX_ID, MAX_NAME, MAX_PAIRS, MAX_VALUE
from tasuki.server.pictures.fetching.request_addresses import NOTHING_FETCHED, Fetched
from tasuki.server.text.json_reading import (
    MAX_DEPTH,
    MAX_VALUES,
    holds_too_many_values,
    nested_too_deeply,
)

Value = TypeVar("Value")

_NAMES = {str: "a string", bool: "true or false", list: "a list", dict: "an object"}
"""Names of JSON types in error texts, by Python type."""


def required(item: Mapping[str, Any], name: str, kind: type[Value], place: str) -> Value:
    """Return field `name` of an object inside the request. place: position of the object in the
    request, for errors. Raises InvalidField if the field is absent, null or not of type `kind`."""
    value = item.get(name)
    if not isinstance(value, kind):
        raise InvalidField(f"{place}.{name}", f"must be {_NAMES[kind]}")
    return value


def optional(item: Mapping[str, Any], name: str, kind: type[Value], place: str) -> Value | None:
    """Return field `name` of an object inside the request like required(), or None if it is absent
    or null."""
    return None if item.get(name) is None else required(item, name, kind, place)


class ToolNames:
    """The names of a request's tools so far. Names must differ, because a call names its tool."""

    def __init__(self) -> None:
        self._places: dict[str, str] = {}

    def add(self, name: str, place: str) -> None:
        """Add the name given at `place`. Raises InvalidField for a name given before."""
        before = self._places.setdefault(name, place)
        if before != place:
            raise InvalidField(place, f"{name!r:.60} is also the name at {before}: give another")


class RequestFields:
    def __init__(self, values: Mapping[str, Any], fetched: Fetched = NOTHING_FETCHED) -> None:
        """fetched: contents of addresses in the request."""
        self._values = values
        self.fetched = fetched

    def refuse_unknown(self, known: Collection[str]) -> None:
        """Raise InvalidField for a field with a name outside `known`, because it might change the
        answer. A null field is accepted."""
        for name in self.unknown(known):
            raise InvalidField(f"{name:.80}", "is not known here: leave it out")

    def unknown(self, known: Collection[str]) -> list[str]:
        """Return the names of all fields outside `known`, except null fields."""
        return [name for name in self._values if name not in known and self.get(name) is not None]

    def with_fetched(self, fetched: Fetched) -> "RequestFields":
        """Return the same fields with the contents of addresses."""
        return RequestFields(self._values, fetched)

    def changed(self, **values: Any) -> "RequestFields":
        """Return a copy of the fields. `values` replace fields of the same name."""
        return RequestFields({**self._values, **values}, self.fetched)

    def only(self, *names: str, **values: Any) -> "RequestFields":
        """Return only the fields with these names, absent ones as null, and add the fields
        `values`."""
        return RequestFields({name: self.get(name) for name in names} | values, self.fetched)

    def get(self, name: str) -> Any:
        return self._values.get(name)

    def text(self, name: str) -> str | None:
        return self._of(name, str)

    def short_text(self, name: str, most: int, place: str | None = None) -> str | None:
        """Return the text of a field, or None if it is absent. most: limit in characters. place:
        the field's name in errors; None: `name`. Raises InvalidField if the value is no text, or
        longer than `most`."""
        value = self.text(name)
        if value is not None:
            _check_length(value, most, place or name)
        return value

    def flag(self, name: str, default: bool = False) -> bool:
        found = self._of(name, bool)
        return default if found is None else found

    def integer(self, name: str) -> int | None:
        """Return the integer of a field, in [-2^63, 2^63), or None if it is absent. A float such as
        60.0 is accepted, as in JSON Schema, because some languages write every number as a float.
        Raises InvalidField."""
        value = self.get(name)
        if value is None:
            return None
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int):
            raise InvalidField(name, "must be an integer")
        if not -(2**63) <= value < 2**63:
            raise InvalidField(name, "must be in [-2^63, 2^63)")
        return value

    def number(self, name: str, default: float) -> float:
        value = self.get(name)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise InvalidField(name, "must be a number")
        if not abs(value) <= sys.float_info.max:
            raise InvalidField(name, "must be finite")
        return float(value)

    def items(self, name: str, most: int | None = None) -> list[Any]:
        """Return the items of a field with a list. Return an empty list if the field is absent.
        most: allowed number of items; None: no limit. Raises InvalidField for more items, or for no
        list."""
        found = self._of(name, list) or []
        if most is not None and len(found) > most:
            raise InvalidField(name, f"may hold at most {most}")
        return found

    def items_by_name(self, name: str) -> dict[str, Any]:
        """Return the members of a field with an object, by name. Return an empty dict if the field
        is absent. Raises InvalidField for no object."""
        return self._of(name, dict) or {}

    def refuse_but(self, name: str, harmless: Sequence[Any]) -> None:
        """Raise InvalidField unless the field is absent or has a harmless value. harmless: values
        with the same effect as no field."""
        value = self.get(name)
        if value is None or is_among(value, harmless):
            return
        instead = f", or {json.dumps(harmless[0])}" if harmless else ""
        raise InvalidField(name, f"is not supported here: leave it out{instead}")

    def fields(self, name: str, served: Collection[str] | None = None) -> "RequestFields":
        """Return the fields of an object in field `name`. Return no fields if it is absent. served:
        names allowed in the object; None: all. Raises InvalidField for another name with a value
        other than null."""
        found = RequestFields(self.items_by_name(name))
        for unserved in () if served is None else found.unknown(served):
            raise InvalidField(f"{name}.{unserved:.80}", "is not supported here: leave it out")
        return found

    def _of(self, name: str, kind: type[Value]) -> Value | None:
        value = self.get(name)
        if value is None or isinstance(value, kind):
            return value
        raise InvalidField(name, f"must be {_NAMES[kind]}")


def _check_length(text: str, most: int, place: str) -> None:
    if len(text) > most:
        raise InvalidField(place, f"has {len(text)} characters: send at most {most}")


def is_among(value: Any, values: Sequence[Any]) -> bool:
    """Return True if a JSON value is one of `values`. True does not equal 1 here, unlike in
    Python."""
    return any(
        value == each and isinstance(value, bool) == isinstance(each, bool) for each in values
    )


def check_is_json(request: web.Request) -> None:
    """Raise HttpRefusal unless the request's content type is JSON. The check protects against
    foreign web pages: they cannot send JSON without the server's permission (CORS)."""
    if request.content_type != "application/json":
        raise HttpRefusal(415, "not_json", "send the body with Content-Type: application/json")


def read_fields(body: bytearray) -> RequestFields:
    """Return the fields of a request's body, a JSON object. Empties `body`, so its memory is freed
    on this thread. Raises InvalidRequest, also beyond MAX_VALUES or MAX_DEPTH."""
    try:
        values = _decoded(body)
    finally:
        body.clear()
    if not isinstance(values, dict):
        raise InvalidRequest("body must be a JSON object")
    if nested_too_deeply(values):
        raise InvalidRequest(f"body is nested too deeply: use at most {MAX_DEPTH} levels")
    return RequestFields(values)


def _decoded(body: bytearray) -> Any:
    """Return the value of a JSON body. Raises InvalidRequest if it is not JSON or has too many
    values."""
    if holds_too_many_values(body):
        raise InvalidRequest(f"body holds over {MAX_VALUES} values: send less")
    try:
        # Decode at the speed of memory, because other threads wait meanwhile.
        return msgspec.json.decode(body)
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(f"body is not JSON: {error}") from error


def check_account_fields(fields: RequestFields) -> None:
    """Raise InvalidField if a field about the client's account (`user`, `metadata` and others) is
    too long, has too many entries, or is of another type."""
    for name in IDS:
        fields.short_text(name, MAX_ID)
    pairs = fields.items_by_name("metadata")
    if len(pairs) > MAX_PAIRS:
        raise InvalidField("metadata", f"has {len(pairs)} pairs: send at most {MAX_PAIRS}")
    for name in pairs:
        if len(name) > MAX_NAME:
            raise InvalidField(
                "metadata", f"has a name of {len(name)} characters: send at most {MAX_NAME}"
            )
        _check_length(required(pairs, name, str, "metadata"), MAX_VALUE, f"metadata.{name}")
