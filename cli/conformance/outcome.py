"""The outcome of a check, and assertions about values.

Holds the row of one check, and the exceptions of a failed or skipped check. Plain values.

Shapes describe JSON values, and are compared with a value. Pure.

A shape is a type, a set of allowed values, a list with the shape of each item, or an object by key.
A tuple of shapes allows any one of them. A key ending with `?` may be missing or null.
"""

from dataclasses import dataclass
from enum import Enum
from typing import Any

_MOST_SHOWN = 200


class Outcome(Enum):
    PASSED = "passed"
    FAILED = "failed"
    SKIPPED = "skipped"


@dataclass(frozen=True)
class Row:
    """One check's result. note: expected and received value of a failed check, cause of a skipped
    check, else empty."""

    api: str
    check: str
    outcome: Outcome
    note: str = ""


class Departure(Exception):
    """An answer of the server departs from its API. The message names the rule, and the expected
    and the received value."""

    def __init__(self, what: str, expected: Any, got: Any) -> None:
        super().__init__(f"{what}: expected {shown(expected)}, got {shown(got)}")


class Unserved(Exception):
    """A check is skipped: the server lacks the tested feature, or refuses it by name."""


def shown(value: Any) -> str:
    """Return the value as one line, cut to 200 letters."""
    text = " ".join((value if isinstance(value, str) else repr(value)).split())
    return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}..."


def must_equal(what: str, expected: Any, got: Any) -> None:
    """Raise Departure about `what` if the received value differs from the expected one."""
    if got != expected:
        raise Departure(what, repr(expected), repr(got))


def must(holds: bool, what: str, expected: str, got: Any) -> None:
    """Raise Departure about `what` if `holds` is false."""
    if not holds:
        raise Departure(what, expected, repr(got))


Shape = Any
NUMBER = (int, float)


def must_have(shape: Shape, value: Any, place: str) -> None:
    """Compare a JSON value with a shape. Raise Departure with the place of the first value of
    another shape. place: place of `value` itself."""
    if isinstance(shape, tuple):
        if not any(_has(one, value, place) for one in shape):
            raise Departure(place, _named(shape), value)
    elif isinstance(shape, dict):
        _must_have_keys(shape, value, place)
    elif isinstance(shape, list):
        if not isinstance(value, list):
            raise Departure(place, "a list", value)
        for number, item in enumerate(value):
            must_have(shape[0], item, f"{place}[{number}]")
    elif isinstance(shape, frozenset | set):
        if not isinstance(value, str) or value not in shape:
            raise Departure(place, _named(shape), value)
    elif not isinstance(value, shape) or (isinstance(value, bool) and shape is not bool):
        raise Departure(place, _named(shape), value)


def _must_have_keys(shape: dict[str, Shape], value: Any, place: str) -> None:
    if not isinstance(value, dict):
        raise Departure(place, "an object", value)
    for key, inner in shape.items():
        name = key.removesuffix("?")
        if value.get(name) is None and (key.endswith("?") or inner is type(None)):
            continue
        if name not in value:
            raise Departure(f"{place}.{name}", _named(inner), "nothing")
        must_have(inner, value[name], f"{place}.{name}")


def _has(shape: Shape, value: Any, place: str) -> bool:
    try:
        must_have(shape, value, place)
    except Departure:
        return False
    return True


def _named(shape: Shape) -> str:
    if isinstance(shape, tuple):
        return " or ".join(map(_named, shape))
    if isinstance(shape, frozenset | set):
        return "one of " + ", ".join(sorted(shape))
    if isinstance(shape, dict):
        return "an object"
    if isinstance(shape, list):
        return "a list"
    return "null" if shape is type(None) else str(shape.__name__)
