"""Checks of a peer's values against the bounds of a node of this version.

Pure. Readers of messages call it for every value kept, computed with, logged or shown. The types at
the module's end carry a bound as metadata. It is applied when a table of peers' messages reads the
field (transfer/wire.py). Invariant: returned values are finite, bounded and printable.
"""

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Annotated, Any, TypeAlias

from .errors import PeerInvalid

LONGEST_NAME = 128
LONGEST_REASON = 1024
LONGEST_SECONDS = 86400.0
"""Longest duration in any message, in seconds: one day."""
LONGEST_LEASE = 600.0
MOST_BYTES = 1 << 50
MOST_FIELDS = 128
_SHOWN = 256

Bound: TypeAlias = Callable[[Any, str], Any]
"""Check of a value. It takes the value and its field's name, and returns the value to keep."""


def seconds(value: float, field: str, most: float = LONGEST_SECONDS) -> float:
    """Return `value` if it is in [0, most] seconds. Raises PeerInvalid, as all functions here."""
    return within(value, field, 0.0, most)


def within(value: float, field: str, least: float, most: float) -> float:
    # This form also rejects NaN.
    if not least <= value <= most:
        raise PeerInvalid(f"{field} {value} is not in [{least:g}, {most:g}]")
    return value


def finite(value: float, field: str) -> float:
    if not math.isfinite(value):
        raise PeerInvalid(f"{field} is {value}: no number")
    return value


def count(value: int, field: str, most: int = MOST_BYTES) -> int:
    if not 0 <= value <= most:
        raise PeerInvalid(f"{field} {value} is not in [0, {most}]")
    return value


def integer(value: object, most: int = (1 << 48) - 1) -> int:
    """Return a number of parsed JSON in [0, most]. Raises ValueError for anything else."""
    if type(value) is not int or not 0 <= value <= most:
        raise ValueError(f"a number is not in [0, {most}]")
    return value


def name(value: str, field: str, longest: int = LONGEST_NAME) -> str:
    """Return the name if it has at most `longest` printable characters: it is shown unchanged in
    logs, metrics and pages. Raises PeerInvalid."""
    if not is_name(value, longest):
        raise PeerInvalid(
            f"{field} {shown(value)!r} is no name: at most {longest} printable characters"
        )
    return value


def is_name(value: str, longest: int = LONGEST_NAME) -> bool:
    return len(value) <= longest and value.isprintable()


def known(value: str, field: str, names: frozenset[str]) -> str:
    if value not in names:
        raise PeerInvalid(f"{field} {shown(value)!r} is unknown here")
    return value


def contract(values: Mapping[str, str]) -> dict[str, str]:
    """Return a peer's contract, cut and printable, to be compared and shown. Raises PeerInvalid if
    it has more than MOST_FIELDS fields."""
    if len(values) > MOST_FIELDS:
        raise PeerInvalid(f"contract has {len(values)} fields, at most {MOST_FIELDS} are read")
    return {shown(field): text(value, 4096) for field, value in values.items()}


def text(value: str, longest: int = LONGEST_REASON) -> str:
    """Return the text for a log line: cut to `longest`, unprintable characters replaced."""
    cut = value if len(value) <= longest else f"{value[: longest - 3]}..."
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in cut)


def shown(value: str) -> str:
    """Return a value for use inside a sentence: cut short, with unprintable characters replaced."""
    return text(value, _SHOWN)


def one_of(names: frozenset[str]) -> Bound:
    """Return a check: a value must be one of these names."""
    return partial(known, names=names)


def each(names: frozenset[str], bound: Bound) -> Bound:
    """Return a check for a map: its keys must be among `names`, and its values pass `bound`."""

    def bounded(values: Mapping[str, Any], field: str) -> Mapping[str, Any]:
        for name, value in values.items():
            bound(value, f"{field}[{known(name, field, names)}]")
        return values

    return bounded


def no_peers(value: object, field: str) -> None:
    """Reject a field never sent by peers. Raises PeerInvalid."""
    raise PeerInvalid(f"{field} is no peer's field")


count32 = partial(count, most=2**32 - 1)
long_seconds = partial(seconds, most=MOST_BYTES)

Count32: TypeAlias = Annotated[int, count32]
ByteCount: TypeAlias = Annotated[int, count]
Seconds: TypeAlias = Annotated[float, seconds]
Extent: TypeAlias = Annotated[float, long_seconds]
"""Seconds or another quantity, finite and not negative."""
Number: TypeAlias = Annotated[float, partial(within, least=-math.inf, most=math.inf)]
"""Number, possibly infinite, but not NaN."""
Finite: TypeAlias = Annotated[float, finite]
Name: TypeAlias = Annotated[str, name]
Shown: TypeAlias = Annotated[str, lambda value, _: shown(value)]
"""Text of a peer, of any length and content; cut and made printable when read."""
