"""What moved between the tiers of a replay, as JSON and as a table."""

from typing import Any

from tasuki.pycache._cpp_cache import TreeStats
from tasuki.pycache.layout import CacheLayout

from .tiers import GIB, Tiers
from .trace import Trace

_DAY_SECONDS = 86_400


def tier_outcome(
    trace: Trace, layout: CacheLayout, tiers: Tiers, stats: TreeStats
) -> dict[str, Any]:
    """Bytes by tier. Of the disk also how much of it is written over in a day, at the rate of the
    trace: what drives are rated by."""
    first, last = trace.requests[0].timestamp_ms, trace.requests[-1].timestamp_ms
    seconds = max((last - first) / 1000, 1e-3)
    result: dict[str, Any] = {
        "tiers": {"arena": tiers.arena},
        "loaded_bytes": {},
        "written_bytes": {},
        "dropped_bytes": {},
        "used_bytes": {},
        "refused_writes": {},
        "waiting_writes": stats.waiting_writes,
        "seconds": seconds,
    }
    for link, size, held in zip(tiers.links, tiers.below, stats.tiers, strict=True):
        result["tiers"][link.tier] = size
        result["refused_writes"][link.tier] = held.refused_writes
        for name, pages, slots in (
            ("loaded_bytes", held.loaded_pages, held.loaded_slots),
            ("written_bytes", held.written_pages, held.written_slots),
            ("dropped_bytes", held.dropped_pages, held.dropped_slots),
            ("used_bytes", held.pages.tree, held.slots.tree),
        ):
            result[name][link.tier] = pages * layout.page_bytes + slots * layout.slot_bytes
        if link.tier == "disk":
            written = result["written_bytes"]["disk"] / seconds * _DAY_SECONDS
            result["disk_drive_writes_per_day"] = written / (size * GIB)
    return result


def tier_text(result: dict[str, Any]) -> str:
    """Appended to the replay's own table."""
    lines = ["  GiB            size      used   written    loaded   written GB/s"]
    for tier, size in result["tiers"].items():
        if tier == "arena":
            lines.append(f"    arena   {size:11.0f}")
            continue
        used, written, loaded = (
            result[name][tier] / GIB for name in ("used_bytes", "written_bytes", "loaded_bytes")
        )
        rate = result["written_bytes"][tier] / 1e9 / result["seconds"]
        lines.append(
            f"    {tier:<8}{size:11.0f}{used:10.1f}{written:10.1f}{loaded:10.1f}{rate:11.2f}"
        )
    if "disk_drive_writes_per_day" in result:
        lines.append(f"  drive writes a day  {result['disk_drive_writes_per_day']:.2f}")
    return "\n".join(lines) + "\n"
