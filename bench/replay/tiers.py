"""The tiers of a replay: what is below the arena, and what a load from there costs."""

from collections.abc import Sequence
from dataclasses import dataclass

from tasuki.model.costs import PrefillFlops
from tasuki.pycache._cpp_cache import TierConfig
from tasuki.pycache.layout import CacheLayout

from .errors import ReplayError

GIB = 1 << 30
# Dense prefill of a whole node; the decision to load moves little with it, since a load is far
# cheaper than the prefill of all but a few hundred tokens.
FLOPS_A_SECOND = 300e12


@dataclass(frozen=True)
class Link:
    """Between a tier and the arena; seconds and bytes a second, either way."""

    tier: str
    fixed_seconds: float
    bytes_a_second: float


# PCIe 5 with 16 lanes; a pair of NVMe drives.
LINKS = (Link("host", 0.5e-3, 55e9), Link("disk", 5e-3, 12e9))


@dataclass(frozen=True)
class Tiers:
    """Sizes of the arena and of the tiers below it, GiB; the nearest first."""

    arena: float
    below: tuple[float, ...]
    disk_write_budget: float | None = None

    @staticmethod
    def parsed(text: str, disk_write_budget: float | None = None) -> "Tiers":
        """`64,1024` or `64,1024,8192`. Raises ReplayError naming what is wrong."""
        try:
            sizes = [float(part) for part in text.split(",")]
        except ValueError as error:
            raise ReplayError(f"--tiers {text}: {error}; give sizes in GiB as 64,1024") from error
        if not 2 <= len(sizes) <= 1 + len(LINKS) or not all(0 < size < 1 << 20 for size in sizes):
            raise ReplayError(
                f"--tiers {text}: give two or three sizes above 0 in GiB: arena, host and disk"
            )
        if disk_write_budget is not None:
            flag = f"--disk-write-budget {disk_write_budget}"
            if not 0 < disk_write_budget < 1 << 40:
                raise ReplayError(f"{flag}: give MB/s above 0, or leave it out")
            if len(sizes) <= len(LINKS):
                raise ReplayError(f"{flag} is of a disk: give --tiers {text} a third size")
        return Tiers(sizes[0], tuple(sizes[1:]), disk_write_budget)

    @property
    def links(self) -> tuple[Link, ...]:
        return LINKS[: len(self.below)]

    def configs(self, layout: CacheLayout, flops: PrefillFlops) -> Sequence[TierConfig]:
        """Prices are in tokens of prefill."""
        token_seconds = flops.linear / FLOPS_A_SECOND
        found = []
        for size, link in zip(self.below, self.links, strict=True):
            budget = self.disk_write_budget if link.tier == "disk" else None
            found.append(
                TierConfig(
                    slabs=max(1, int(size * GIB) // layout.slab_bytes),
                    fixed_cost=link.fixed_seconds / token_seconds,
                    page_cost=layout.page_bytes / link.bytes_a_second / token_seconds,
                    slot_cost=layout.slot_bytes / link.bytes_a_second / token_seconds,
                    pages_a_second=None if budget is None else budget * 1e6 / layout.page_bytes,
                )
            )
        return found
