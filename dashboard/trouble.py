"""What can be wrong with a node, in words that its own page and the fleet's share. Pure."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import IntEnum

from tasuki.engine.messages.types import ErrorKind

CONNECTED = "connected"
BUSY = (ErrorKind.OVERLOADED, ErrorKind.QUEUE_TIMEOUT)
"""Refusals that more room would have spared; others are the client's own."""


class Level(IntEnum):
    """How urgent it is; a node is sorted and marked by its worst."""

    FINE = 0
    SLOW = 1
    FAULTY = 2
    DEAD = 3


@dataclass(frozen=True)
class Trouble:
    level: Level
    text: str


def troubles_of(
    *,
    invariants_hold: bool,
    links: Mapping[str, float],
    lost_handovers: float,
    refused: float,
) -> list[Trouble]:
    """links: to prefill nodes, by state. lost_handovers, refused: requests, in the last minute."""
    found = []
    if not invariants_hold:
        found.append(Trouble(Level.FAULTY, "the cache's invariants are broken"))
    known = sum(links.values())
    if lost := known - links.get(CONNECTED, 0.0):
        found.append(Trouble(Level.FAULTY, f"{lost:.0f} of {known:.0f} links not connected"))
    if lost_handovers > 0:
        text = f"{lost_handovers:.0f} hand-overs lost in a minute"
        found.append(Trouble(Level.FAULTY, text))
    if refused:
        found.append(Trouble(Level.SLOW, f"{refused:.0f} requests refused in a minute"))
    return found


def worst_first(found: Iterable[Trouble]) -> tuple[Trouble, ...]:
    return tuple(sorted(found, key=lambda trouble: -trouble.level))


def worst(found: Iterable[Trouble]) -> Level:
    return max((trouble.level for trouble in found), default=Level.FINE)


def to_json(trouble: Trouble) -> Mapping[str, object]:
    return {"level": trouble.level.name.lower(), "text": trouble.text}
