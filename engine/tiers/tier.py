"""One tier below the arena: its copier, its counters, and the price of a load from it.

A price is in tokens of prefill, the prefix tree's unit. Rates are assumed, not measured. A load is
far cheaper than any prefill of more than a few hundred tokens, so rates change few decisions.
Measured rates would change decisions from run to run. Prices are pure. Thread rule: counters and
copiers belong to the engine loop.
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
    """Assumed speeds of copies between the arena and a tier, and of prefill. fixed_seconds: seconds
    added to each load. bytes_a_second: copied bytes per second. flops_a_second: FLOPs per second of
    prefill. least_seconds: least seconds of prefill for one token."""

    fixed_seconds: float
    bytes_a_second: float
    flops_a_second: float
    least_seconds: float


CPU_LINK = Link(0.5e-3, 3e9, 50e9, 10e-6)
"""Arena and tier are both in host memory, and each byte is read once more for its digest."""
DISK_LINK = Link(5e-3, 1e9, 50e9, 10e-6)
"""A disk drive shared with other users."""
REMOTE_LINK = Link(50e-3, 0.2e9, 50e9, 10e-6)
"""A remote store on a network of a few gigabits a second, with several requests for each load."""
GPU_LINK = Link(0.5e-3, 50e9, 400e12, 1e-6)
"""PCIe of the fifth generation, between a GPU and host memory."""
GPU_DISK_LINK = Link(5e-3, 3e9, 400e12, 1e-6)
"""A disk drive below a GPU: about half of one NVMe drive's read rate."""
GPU_REMOTE_LINK = Link(50e-3, 2e9, 400e12, 1e-6)
"""A remote store below a GPU, on a network of 25 gigabits a second. On a slower network, larger
models compute faster than they load."""


@dataclass(frozen=True)
class TierPrices:
    """The price of a load from a tier, in tokens of prefill. fixed: for each load. page: for each
    page. slot: for the state."""

    fixed: float
    page: float
    slot: float
    seconds: float
    """Estimated seconds of prefill for one token."""

    @staticmethod
    def of(layout: CacheLayout, token_flops: float, link: Link) -> "TierPrices":
        """Return the prices for the assumed speeds in `link`. token_flops: FLOPs of one token's
        prefill, without attention to earlier tokens."""
        seconds = max(token_flops / link.flops_a_second, link.least_seconds)
        a_byte = 1 / link.bytes_a_second / seconds
        return TierPrices(
            link.fixed_seconds / seconds,
            layout.page_bytes * a_byte,
            layout.slot_bytes * a_byte,
            seconds,
        )

    def load(self, pages: int) -> float:
        """Return the price of a load of `pages` pages and a state, in tokens of prefill."""
        return self.fixed + self.page * pages + self.slot

    def config(
        self, slabs: int, pages_a_second: float | None = None, filling: str = "as_dropped"
    ) -> TierConfig:
        """Return the prefix tree's settings for this tier. pages_a_second: long-run limit of
        written pages per second; None: no limit. filling: the prefix tree's rule for writes."""
        return TierConfig(
            slabs=slabs,
            fixed_cost=self.fixed,
            page_cost=self.page,
            slot_cost=self.slot,
            pages_a_second=pages_a_second,
            filling=filling,
        )


class Copier(Protocol):
    """The interface of a tier's copies for the engine loop, implemented by CopyThread and, for
    several ranks, RankCopier."""

    @property
    def written(self) -> TierDigests:
        """Return the digests of the tier's pages and slots."""

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
    """Counts of a tier's loads and writes by their results. Late and aborted loads were given up
    before their end. Bytes count usable loads and writes only. A failed load counts at the tier of
    its failure, any other load at its lowest tier."""

    loads: dict[str, int] = field(
        default_factory=lambda: _counters(JobEnd.MISMATCH.value, "late", "aborted")
    )
    writes: dict[str, int] = field(default_factory=_counters)
    loaded_bytes: int = 0
    written_bytes: int = 0


@dataclass(frozen=True)
class LowerTier:
    """One tier below the arena as seen by the engine. disk, remote: the tier's store if it is a
    disk or a remote store, else None."""

    name: str
    copier: Copier
    prices: TierPrices
    disk: DiskMemory | None = None
    remote: RemoteMemory | None = None
    counters: TierCounters = field(default_factory=TierCounters)

    @property
    def outlives(self) -> DiskMemory | RemoteMemory | None:
        return self.disk or self.remote
