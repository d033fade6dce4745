"""What is wrong with a node, in words, the worst first. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum

from tasuki.engine.messages.types import ErrorKind

from .exposition_text import by_label, one
from .histogram import buckets_of, quantile
from .metric_names import FIRST_TOKEN, INTEGRITY, LINK_STATE, LOST_HANDOVERS, PER_TOKEN, REFUSED
from .recent_samples import RecentSamples
from .targets import Targets

CONNECTED = "connected"
_BUSY = (ErrorKind.OVERLOADED, ErrorKind.QUEUE_TIMEOUT)
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


def troubles(recent: RecentSamples, targets: Targets) -> tuple[Trouble, ...]:
    """Of a node that answers."""
    found = [*_faults(recent), *_slowness(recent, targets)]
    return tuple(sorted(found, key=lambda trouble: -trouble.level))


def _faults(recent: RecentSamples) -> list[Trouble]:
    found = []
    if one(recent.latest, INTEGRITY) == 0.0:
        found.append(Trouble(Level.FAULTY, "the cache's invariants are broken"))
    states = by_label(recent.latest, LINK_STATE, "state")
    links = sum(states.values())
    if lost := links - states.get(CONNECTED, 0.0):
        found.append(Trouble(Level.FAULTY, f"{lost:.0f} of {links:.0f} links not connected"))
    gained = recent.gained
    if gained is not None:
        lost = sum(by_label(gained.added, LOST_HANDOVERS, "cause").values())
        if lost > 0:
            found.append(Trouble(Level.FAULTY, f"{lost:.0f} hand-overs lost in a minute"))
    return found


def _slowness(recent: RecentSamples, targets: Targets) -> list[Trouble]:
    gained = recent.gained
    if gained is None:
        return []
    found = []
    refused = by_label(gained.added, REFUSED, "kind")
    if busy := sum(refused.get(kind.value, 0.0) for kind in _BUSY):
        found.append(Trouble(Level.SLOW, f"{busy:.0f} requests refused in a minute"))
    for name, words, target in (
        (FIRST_TOKEN, "TTFT", targets.first_token),
        (PER_TOKEN, "ITL", targets.per_token),
    ):
        late = quantile(buckets_of(gained.added, name), 0.95)
        if late is not None and late > target:
            found.append(Trouble(Level.SLOW, f"{words} p95 over {_seconds(target)}"))
    return found


def _seconds(value: float) -> str:
    return f"{value:g} s" if value >= 1 else f"{value * 1000:g} ms"


def worst(found: tuple[Trouble, ...]) -> Level:
    return max((trouble.level for trouble in found), default=Level.FINE)


def to_json(trouble: Trouble) -> Mapping[str, object]:
    return {"level": trouble.level.name.lower(), "text": trouble.text}
