"""A node's cache memory: its arena, and the tiers below it, in bytes. Pure.

The values come from another host. At most MOST_TIERS tiers are shown, and every size is from 0 to
LARGEST.
"""

from collections.abc import Iterable, Sequence
from typing import Any

from tasuki.dashboard.memory_use import MemoryUse, memory_use

from .samples import (
    EACH_BYTES,
    PAGES,
    SLAB_BYTES,
    SLABS,
    SLOTS,
    TIER_BYTES,
    TIER_SLABS,
    RecentSamples,
    by_label,
    one,
)

ARENA = "arena"
MOST_TIERS = 4
LARGEST = 1e18
"""Largest accepted size in bytes. Sums of such sizes stay finite."""

_TIER = "tier"


def memory_of(recent: RecentSamples) -> list[dict[str, Any]] | None:
    """Return the memory as JSON, the arena first: its name, and bytes as in MemoryUse. A tier has
    its used bytes, its size, and the recent bytes a second loaded and written. These rates are None
    before two samples. Return None if the arena is not known."""
    arena = _arena(recent)
    if arena is None:
        return None
    slab_bytes = one(recent.latest, SLAB_BYTES) or 0.0
    found: list[dict[str, Any]] = [{"name": ARENA, **arena.to_json()}]
    rates = _rates(recent)
    for name, (free, size) in _tiers(recent).items():
        loaded, written = rates.get((name, "loaded")), rates.get((name, "written"))
        tier = _sized(name, size - free, size, slab_bytes)
        found.append({**tier, "loaded_rate": loaded, "written_rate": written})
    return found


def arenas_use(nodes: Iterable[Sequence[dict[str, Any]] | None]) -> dict[str, float] | None:
    """Return the sums over all arenas, as in MemoryUse; None if no arena is known. nodes:
    memory_of() of each node."""
    arenas = [memory[0] for memory in nodes if memory]
    if not arenas:
        return None
    parts = ("in_use", "cached", "free", "size")
    return {part: sum(arena[part] for arena in arenas) for part in parts}


def size_by_tier(nodes: Iterable[Sequence[dict[str, Any]] | None]) -> dict[str, float]:
    """Return the size in bytes of each tier and the arena over all nodes with known memory, by tier
    name. Only the first names are kept."""
    sums: dict[str, float] = {}
    for memory in nodes:
        for tier in memory or ():
            name = tier["name"]
            if name in sums or len(sums) <= MOST_TIERS:
                sums[name] = sums.get(name, 0.0) + tier["size"]
    return sums


def _arena(recent: RecentSamples) -> MemoryUse | None:
    latest = recent.latest
    pages, slots = (
        {owner: _bounded(count) for owner, count in by_label(latest, name, "owner").items()}
        for name in (PAGES, SLOTS)
    )
    found = memory_use(
        pages,
        slots,
        _bounded(sum(by_label(latest, SLABS, "use").values())),
        _bounded(one(latest, SLAB_BYTES) or 0.0),
        _bounded(by_label(latest, EACH_BYTES, "kind").get("page", 0.0)),
    )
    if found is None or found.size <= LARGEST:
        return found
    return MemoryUse(_bounded(found.in_use), 0.0, LARGEST)


def _bounded(value: float) -> float:
    return min(max(value, 0.0), LARGEST)


def _sized(name: str, used: float, size: float, slab_bytes: float) -> dict[str, Any]:
    size = _bounded(size * slab_bytes)
    return {"name": name, "used": min(_bounded(used * slab_bytes), size), "size": size}


def _tiers(recent: RecentSamples) -> dict[str, tuple[float, float]]:
    """Return the number of free slabs and of all slabs (fixed-size parts of a tier), by tier
    name."""
    found: dict[str, dict[str, float]] = {}
    for labels, slabs in recent.latest.get(TIER_SLABS, {}).items():
        named = dict(labels)
        name = named.get(_TIER)
        if name and (name in found or len(found) < MOST_TIERS):
            found.setdefault(name, {})[named.get("use", "")] = slabs
    return {name: (uses.get("free", 0.0), uses.get("total", 0.0)) for name, uses in found.items()}


def _rates(recent: RecentSamples) -> dict[tuple[str, str], float]:
    """Return the bytes a second moved, by the tier's name and the direction."""
    gained = recent.gained
    if gained is None:
        return {}
    found: dict[tuple[str, str], float] = {}
    for labels, added in gained.added.get(TIER_BYTES, {}).items():
        named = dict(labels)
        key = named.get(_TIER, ""), named.get("direction", "")
        found[key] = _bounded(added) / gained.seconds
    return found
