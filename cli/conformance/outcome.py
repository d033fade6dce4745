"""What came of one check, and how a check says that it did not hold. Plain values."""

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
    """note: of a failure, the expected and the received value; of a skip, its cause; else empty."""

    api: str
    check: str
    outcome: Outcome
    note: str = ""


class Departure(Exception):
    """The server departed from its API. The message has the rule, and the expected and the received
    value."""

    def __init__(self, what: str, expected: Any, got: Any) -> None:
        super().__init__(f"{what}: expected {shown(expected)}, got {shown(got)}")


class Unserved(Exception):
    """A check has nothing to look at: the server lacks what is asked for, or says so."""


def shown(value: Any) -> str:
    """One line of at most 200 letters."""
    text = " ".join((value if isinstance(value, str) else repr(value)).split())
    return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}..."


def must_equal(what: str, expected: Any, got: Any) -> None:
    """Raises Departure."""
    if got != expected:
        raise Departure(what, repr(expected), repr(got))


def must(holds: bool, what: str, expected: str, got: Any) -> None:
    """Raises Departure where it does not hold."""
    if not holds:
        raise Departure(what, expected, repr(got))
