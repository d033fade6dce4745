"""Whether a node does well, in a word, and why not: what the top of its page says first. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tasuki.engine.messages.types import ErrorKind

from .trouble import BUSY, Level, Trouble, to_json, troubles_of, worst, worst_first

_STANDS = 10.0
"""So old a sample of the counters says that the engine has ended no step since."""


@dataclass(frozen=True)
class Standing:
    """What a node says of itself. lost: why its engine has died; None while it lives."""

    lost: str | None = None
    draining: bool = False


def health(
    standing: Standing, pools: Mapping[str, Any], faults: Mapping[str, int], now: float
) -> dict[str, Any]:
    """As JSON: word, level, and reasons, the worst first. pools: the last sample of the node's
    counters, as an event; empty before one. faults: of the last minute, by kind. now: seconds since
    1970."""
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
