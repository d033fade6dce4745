"""One tier below the arena: its copier, its counters, and the price of a load from it.

A price is in tokens of prefill, the tree's unit. Rates are assumed, not measured. A load is far
cheaper than any prefill of more than a few hundred tokens, so rates change few decisions. Measured
rates would change decisions from run to run. Prices are pure. Thread rule: counters and copiers
belong to the engine loop.
"""

from dataclasses import dataclass, field
from typing import Protocol

from tasuki.engine.tiers.disk.disk_memory import DiskMemory
from tasuki.engine.tiers.remote.remote_memory import RemoteMemory
from tasuki.pycache._cpp_cache import TierConfig
from tasuki.pycache.layout import CacheLayout

from .copy_job import CopyJob, JobEnd
from .digests import TierDigests


@dataclass(frozen=True)
class Link:
    """The link between the arena and a tier. fixed_seconds: added to each load. bytes_a_second:
    copy rate. flops_a_second: prefill rate. least_seconds: the least time of a token's prefill."""

    fixed_seconds: float
    bytes_a_second: float
    flops_a_second: float
    least_seconds: float


CPU_LINK = Link(0.5e-3, 3e9, 50e9, 10e-6)
"""Both sides are host memory, and each byte is read once more for its digest."""
DISK_LINK = Link(5e-3, 1e9, 50e9, 10e-6)
"""A drive with other users."""
REMOTE_LINK = Link(50e-3, 0.2e9, 50e9, 10e-6)
"""A store on a network of a few gigabits, with several requests a load."""
GPU_LINK = Link(0.5e-3, 50e9, 400e12, 1e-6)
"""PCIe of the fifth generation."""
GPU_DISK_LINK = Link(5e-3, 3e9, 400e12, 1e-6)
"""About half of one NVMe drive's read rate."""
GPU_REMOTE_LINK = Link(50e-3, 2e9, 400e12, 1e-6)
"""A store on a 25-gigabit network. On a slower one, larger models compute faster than they load."""


@dataclass(frozen=True)
class TierPrices:
    """The price of a load in tokens of prefill. It has a fixed part, a part for each page, and one
    for the state."""

    fixed: float
    page: float
    slot: float
    seconds: float
    """Seconds of a token's prefill."""

    @staticmethod
    def of(layout: CacheLayout, token_flops: float, link: Link) -> "TierPrices":
        """Return the prices of a link. token_flops: FLOPs of a token's prefill, without attention
        to earlier tokens."""
        seconds = max(token_flops / link.flops_a_second, link.least_seconds)
        a_byte = 1 / link.bytes_a_second / seconds
        return TierPrices(
            link.fixed_seconds / seconds,
            layout.page_bytes * a_byte,
            layout.slot_bytes * a_byte,
            seconds,
        )

    def load(self, pages: int) -> float:
        """Return the price of a load of `pages` pages and a state."""
        return self.fixed + self.page * pages + self.slot

    def config(
        self, slabs: int, pages_a_second: float | None = None, filling: str = "as_dropped"
    ) -> TierConfig:
        """Return the tree's settings. pages_a_second: long-run write budget. filling: the tree's
        setting."""
        return TierConfig(
            slabs=slabs,
            fixed_cost=self.fixed,
            page_cost=self.page,
            slot_cost=self.slot,
            pages_a_second=pages_a_second,
            filling=filling,
        )


class Copier(Protocol):
    """CopyThread or a replacement."""

    @property
    def written(self) -> TierDigests:
        """Return the digests of the tier's contents."""

    def begin(self, job: CopyJob) -> None: ...

    def empty(self) -> None: ...

    def cancel(self, transfer: int) -> None: ...

    def take_ended(self) -> list[tuple[int, JobEnd]]: ...

    def wait(self, seconds: float) -> None: ...

    def close(self, seconds: float) -> bool: ...


def _counters(*more: str) -> dict[str, int]:
    ends = (JobEnd.DONE, JobEnd.CANCELLED, JobEnd.BROKEN)
    return dict.fromkeys([*(end.value for end in ends), *more], 0)


@dataclass
class TierCounters:
    """Counts of loads and writes by their results. Late and aborted loads were given up before
    their end. Bytes count usable loads and writes only. A failed load counts at the tier of its
    failure, any other at its lowest tier."""

    loads: dict[str, int] = field(
        default_factory=lambda: _counters(JobEnd.MISMATCH.value, "late", "aborted")
    )
    writes: dict[str, int] = field(default_factory=_counters)
    loaded_bytes: int = 0
    written_bytes: int = 0


@dataclass(frozen=True)
class LowerTier:
    """One tier as seen by the engine. disk, remote: its medium, if the medium outlives the node."""

    name: str
    copier: Copier
    prices: TierPrices
    disk: DiskMemory | None = None
    remote: RemoteMemory | None = None
    counters: TierCounters = field(default_factory=TierCounters)

    @property
    def outlives(self) -> DiskMemory | RemoteMemory | None:
        return self.disk or self.remote
