"""The memory that a node keeps its cache in: its arena, and the tiers below that, in bytes. Pure.

Another host says what is read here: at most MOST_TIERS are shown, and every size is from 0 to
LARGEST.
"""

from collections.abc import Iterable, Sequence
from typing import Any

from .exposition_text import by_label, one
from .metric_names import SLAB_BYTES, SLABS, TIER_BYTES, TIER_SLABS
from .recent_samples import RecentSamples

ARENA = "arena"
MOST_TIERS = 4
LARGEST = 1e18
"""Bytes; sums of them stay finite."""

_TIER = "tier"


def memory_of(recent: RecentSamples) -> list[dict[str, Any]] | None:
    """As JSON, the arena first: name, used and size in bytes; of a tier also the bytes a second
    that were loaded and written lately, None before two samples. None where it is not known."""
    latest = recent.latest
    slab_bytes = one(latest, SLAB_BYTES)
    slabs = by_label(latest, SLABS, "use")
    if not slab_bytes or not slabs:
        return None
    whole = sum(slabs.values())
    found = [_sized(ARENA, whole - slabs.get("free", 0.0), whole, slab_bytes)]
    rates = _rates(recent)
    for name, (free, size) in _tiers(recent).items():
        loaded, written = rates.get((name, "loaded")), rates.get((name, "written"))
        tier = _sized(name, size - free, size, slab_bytes)
        found.append({**tier, "loaded_rate": loaded, "written_rate": written})
    return found


def size_by_tier(nodes: Iterable[Sequence[dict[str, Any]] | None]) -> dict[str, float]:
    """Bytes of all nodes that say so, by the tier's name; of the names that come first."""
    sums: dict[str, float] = {}
    for memory in nodes:
        for tier in memory or ():
            name = tier["name"]
            if name in sums or len(sums) <= MOST_TIERS:
                sums[name] = sums.get(name, 0.0) + tier["size"]
    return sums


def _sized(name: str, used: float, size: float, slab_bytes: float) -> dict[str, Any]:
    size = min(max(size * slab_bytes, 0.0), LARGEST)
    return {"name": name, "used": min(max(used * slab_bytes, 0.0), size), "size": size}


def _tiers(recent: RecentSamples) -> dict[str, tuple[float, float]]:
    """Slabs that are free, and all, by the tier's name."""
    found: dict[str, dict[str, float]] = {}
    for labels, slabs in recent.latest.get(TIER_SLABS, {}).items():
        named = dict(labels)
        name = named.get(_TIER)
        if name and (name in found or len(found) < MOST_TIERS):
            found.setdefault(name, {})[named.get("use", "")] = slabs
    return {name: (uses.get("free", 0.0), uses.get("total", 0.0)) for name, uses in found.items()}


def _rates(recent: RecentSamples) -> dict[tuple[str, str], float]:
    """Bytes a second by the tier's name and the direction."""
    gained = recent.gained
    if gained is None:
        return {}
    found: dict[tuple[str, str], float] = {}
    for labels, added in gained.added.get(TIER_BYTES, {}).items():
        named = dict(labels)
        key = named.get(_TIER, ""), named.get("direction", "")
        found[key] = min(max(added, 0.0), LARGEST) / gained.seconds
    return found
