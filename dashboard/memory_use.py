"""The use of an arena's memory, in the one unit shown by pages, log and terminal.

Pure. Shares are of the arena's bytes. A slab is a fixed-size part of the arena. A state slot takes
a whole slab. A KV page takes its part of a slab, independent of the slab's other pages. So a gap
between pages is free.
"""

from collections.abc import Mapping
from dataclasses import dataclass

_HELD = ("working", "pinned", "in_transfer", "quarantined")
_CACHED = "evictable"


@dataclass(frozen=True)
class MemoryUse:
    """The use of an arena's memory, in bytes. in_use: held by requests, hand-overs and fences; none
    of it can be evicted now. cached: kept for later prompts, and evicted if memory is needed. size:
    all of the arena."""

    in_use: float
    cached: float
    size: float

    @classmethod
    def from_json(cls, value: Mapping[str, float]) -> "MemoryUse":
        return cls(value["in_use"], value["cached"], value["size"])

    @property
    def free(self) -> float:
        return max(0.0, self.size - self.in_use - self.cached)

    def words(self) -> str:
        """Return the shares in use and cached as a text for log and terminal."""
        return f"memory {self._share(self.in_use)} in use, {self._share(self.cached)} cached"

    def to_json(self) -> dict[str, float]:
        return {
            "in_use": self.in_use,
            "cached": self.cached,
            "free": self.free,
            "size": self.size,
        }

    def _share(self, part: float) -> str:
        return f"{100 * part / self.size:.1f}%"


def memory_use(
    pages: Mapping[str, float],
    slots: Mapping[str, float],
    slabs: float,
    slab_bytes: float,
    page_bytes: float,
) -> MemoryUse | None:
    """Return the memory use of an arena; None if the size of the arena or of a page is not known.
    pages, slots: number of each by owner. slabs: number of slabs in the arena. slab_bytes: bytes of
    one slab. page_bytes: bytes of one page, over all layers."""
    if slabs <= 0 or slab_bytes <= 0 or page_bytes <= 0:
        return None
    page = slab_bytes / max(1, slab_bytes // page_bytes)
    size = slabs * slab_bytes

    def taken(owners: tuple[str, ...]) -> float:
        counts = ((pages.get(owner, 0.0), slots.get(owner, 0.0)) for owner in owners)
        return sum(page * number + slab_bytes * others for number, others in counts)

    in_use = min(size, taken(_HELD))
    return MemoryUse(in_use, min(size - in_use, taken((_CACHED,))), size)
