"""A node's health and its faults, in words for its page and the fleet's page. Pure.

troubles_of() lists the faults for both pages. health() gives one word on the node, and the reasons
for it, shown at the top of the node's page.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from tasuki.engine.messages.types import ErrorKind

CONNECTED = "connected"
BUSY = (ErrorKind.OVERLOADED, ErrorKind.QUEUE_TIMEOUT)
"""Kinds of refusals caused by a lack of capacity. The client causes all other refusals."""


class Level(IntEnum):
    """Urgency of a fault. A node is sorted and marked by its worst fault's level."""

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
    """Return the node's faults. links: number of links to prefill nodes, by state. lost_handovers,
    refused: numbers of requests in the last minute."""
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


_STANDS = 10.0
"""Age in seconds. If the last sample of the counters is older, the engine has taken no step since
then."""


@dataclass(frozen=True)
class Standing:
    """A node's own state. lost: the reason of its engine's death; None while the engine lives.
    draining: the node drains."""

    lost: str | None = None
    draining: bool = False


AskStanding = Callable[[], Standing]
"""A function without arguments. Returns a node's present state."""


def health(
    standing: Standing, pools: Mapping[str, Any], faults: Mapping[str, int], now: float
) -> dict[str, Any]:
    """Return the health as JSON: word, level, and reasons, the worst first. pools: the last sample
    of the node's counters, as an event; empty before the first. faults: faults of the last minute,
    by kind. now: seconds since 1970."""
    if standing.lost is not None:
        found: tuple[Trouble, ...] = (Trouble(Level.DEAD, standing.lost),)
    else:
        found = worst_first(_troubles(standing, pools, faults, now))
    return {
        "word": _word(standing),
        "level": worst(found).name.lower(),
        "reasons": [to_json(trouble) for trouble in found],
    }


def _word(standing: Standing) -> str:
    if standing.lost is not None:
        return "not ready"
    return "draining" if standing.draining else "ready"


def _troubles(
    standing: Standing, pools: Mapping[str, Any], faults: Mapping[str, int], now: float
) -> list[Trouble]:
    found = troubles_of(
        invariants_hold=pools.get("integrity", "ok") == "ok",
        links=pools.get("prefill_nodes", {}),
        lost_handovers=sum(n for kind, n in faults.items() if kind.startswith("lost.")),
        refused=sum(faults.get(f"rejected.{kind.value}", 0) for kind in BUSY),
    )
    if standing.draining:
        found.append(Trouble(Level.SLOW, "takes no new requests"))
    if failed := faults.get(f"rejected.{ErrorKind.INTERNAL.value}"):
        found.append(Trouble(Level.FAULTY, f"{failed} requests failed in a minute"))
    if pools and now - pools["at"] > _STANDS:
        text = f"the engine has ended no step for {now - pools['at']:.0f} s"
        found.append(Trouble(Level.SLOW, text))
    return found
